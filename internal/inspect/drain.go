// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"errors"
	"fmt"
	"os"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/pinfs"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/report/condition"
)

// Drain is a `beeline cleanup --drain`.
type Drain struct {
	pinfs.Drain
	Flows int `json:"flows"` // that are known and not closed
}

// readDrain returns the drain of a bpffs directory; nil if there is none.
func readDrain(bpffs string) (*Drain, error) {
	marked := pinfs.DrainOf(bpffs)
	if marked == nil {
		return nil, nil
	}
	d := &Drain{Drain: *marked}
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

// running returns the condition that the drain is running.
func (d *Drain) running() condition.Condition {
	process := fmt.Sprintf("pid %d", d.PID)
	if d.PID == 0 {
		process = "in another PID namespace"
	}
	return condition.Draining.New("`beeline cleanup --drain` is running (%s): new connections and flows pass to another proxy of the node; %s until they end, or until %s, when everything is detached",
		process, d.left(), d.Until.Format(time.DateTime))
}

// left says how many flows are served in a drain.
func (d *Drain) left() string {
	return fmt.Sprintf("the flows of clients that are known (%d) are served", d.Flows)
}
