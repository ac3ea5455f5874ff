// SPDX-License-Identifier: Apache-2.0

package component

import (
	"net/netip"
	"path"
	"slices"
	"strings"
)

// The values of a flag that selects devices, beside names and shell patterns.
const (
	Auto = "auto"
	Off  = "off"
)

// Devices is such a flag: off, auto, or names and patterns.
type Devices []string

// Enabled reports whether it is not off.
func (d Devices) Enabled() bool { return !slices.Equal(d, Devices{Off}) }

// Patterns are the names and patterns; nil: all.
func (d Devices) Patterns() []string {
	if slices.Equal(d, Devices{Auto}) {
		return nil
	}
	return d
}

// Invalid returns the first value that may not be there.
func (d Devices) Invalid() (value string, found bool) {
	for _, p := range d {
		if _, err := path.Match(p, ""); err != nil || p == "" || (p == Auto || p == Off) && len(d) > 1 {
			return p, true
		}
	}
	return "", false
}

// ParseNetwork parses a network of either family. It converts IPv4-mapped IPv6 to IPv4, and clears host bits.
func ParseNetwork(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(strings.TrimSpace(text))
	if err != nil {
		return p, err
	}
	if p.Addr().Is4In6() {
		p = netip.PrefixFrom(p.Addr().Unmap(), max(p.Bits()-96, 0))
	}
	return p.Masked(), nil
}
