// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"errors"
	"os"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/pinfs"
	"beeline.io/beeline/internal/conntrack"
)

// readDrain returns the drain of a bpffs directory; nil if there is none.
func readDrain(bpffs string) (*api.Drain, error) {
	marked := pinfs.DrainOf(bpffs)
	if marked == nil {
		return nil, nil
	}
	d := &api.Drain{Drain: *marked}
	tables, err := conntrack.Open(bpffs)
	if errors.Is(err, os.ErrNotExist) { // no edge, so no flows
		return d, nil
	}
	if err != nil {
		return d, err
	}
	flows, err := conntrack.List(tables, func(uint32) (owner, port string) { return "", "" })
	for _, f := range flows {
		if f.State != conntrack.StateNames[bpf.ConntrackClosed] {
			d.Flows++
		}
	}
	return d, err
}
