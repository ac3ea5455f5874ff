// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// PortRange is a range of ports, both ends included.
type PortRange struct{ First, Last uint16 }

// ParsePortRange parses a port, or the first and the last of a range with a hyphen between them.
func ParsePortRange(text string) (r PortRange, err error) {
	first, last, isRange := strings.Cut(strings.TrimSpace(text), "-")
	if !isRange {
		last = first
	}
	f, err := strconv.ParseUint(first, 10, 16)
	l, err2 := strconv.ParseUint(last, 10, 16)
	return PortRange{First: uint16(f), Last: uint16(l)}, errors.Join(err, err2)
}

func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// Overlaps reports whether the ranges have a common port.
func (r PortRange) Overlaps(o PortRange) bool { return r.First <= o.Last && o.First <= r.Last }
