// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/condition"
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/node"
)

// Programs may add entries to the kernel's conntrack while it is at most half full, so that they never take room from
// the node's own flows. They stop by themselves if the agent does not renew that.
const (
	kernelRoomEvery = time.Second
	kernelRoomLasts = 10 // seconds
)

// hasRoom reports whether programs may add entries: conntrack is in use, so that netfilter may masquerade, and there
// is room.
func hasRoom(c node.Conntrack) bool { return c.Entries > 0 && c.Entries < c.Max/2 }

// renewKernelRoom tells programs every second whether they may add entries to the kernel's conntrack.
func (r *running) renewKernelRoom(ctx context.Context) error {
	ticker := time.NewTicker(kernelRoomEvery)
	defer ticker.Stop()
	for {
		if err := r.setKernelRoom(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (r *running) setKernelRoom() error {
	var until uint32
	if c, err := node.ReadConntrack(); err == nil && hasRoom(c) {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			return err
		}
		until = uint32(now.Sec) + kernelRoomLasts
	}
	return r.env.Datapath.SetKernelRoom(until)
}

// conditions returns what the edge does not know of the kernel's flows.
func (r *running) conditions() (all condition.List) {
	if why := datapath.NoKernelFlows(); why != "" {
		all = append(all, condition.KernelFlowsUnknown.New("answers to masqueraded pods may reach a Service's backend, because the edge cannot look them up in the kernel's conntrack: %s", why))
	}
	return all
}
