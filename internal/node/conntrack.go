// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"beeline.io/beeline/internal/node/netdev"
)

// Conntrack is how full the kernel's conntrack is.
type Conntrack struct {
	// Entries are those of this network namespace. 0 means that nothing there uses conntrack.
	Entries uint64
	// Max is the number of entries that a network namespace may have (nf_conntrack_max).
	Max uint64
}

// ReadConntrack reads how full the kernel's conntrack is; zero if the kernel does not have it, or its module is not
// loaded.
func ReadConntrack() (c Conntrack, _ error) {
	for name, to := range map[string]*uint64{"nf_conntrack_count": &c.Entries, "nf_conntrack_max": &c.Max} {
		text, err := os.ReadFile(netdev.SysctlRoot + "/netfilter/" + name)
		if errors.Is(err, os.ErrNotExist) {
			return Conntrack{}, nil
		}
		if err == nil {
			*to, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
		}
		if err != nil {
			return Conntrack{}, fmt.Errorf("read %s: %w", name, err)
		}
	}
	return c, nil
}
