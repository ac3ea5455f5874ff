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

// Programs may add entries to the kernel's conntrack while netfilter may translate sources, and conntrack is at most half
// full, so that they never take room from the node's own flows. They stop by themselves if the agent does not renew that.
const (
	kernelRoomEvery = time.Second
	kernelRoomLasts = 10 // seconds
	natEvery        = 10 * time.Second
)

// kernelRoom knows whether programs may add entries.
type kernelRoom struct {
	translates bool // netfilter may translate sources
	read       time.Time
}

// renewKernelRoom tells programs every second whether they may add entries to the kernel's conntrack.
func (r *running) renewKernelRoom(ctx context.Context) error {
	var room kernelRoom
	ticker := time.NewTicker(kernelRoomEvery)
	defer ticker.Stop()
	for {
		var until uint32
		if room.is() {
			var now unix.Timespec
			if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
				return err
			}
			until = uint32(now.Sec) + kernelRoomLasts
		}
		if err := r.env.Datapath.SetKernelRoom(until); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// is reads whether programs may add entries. What cannot be read counts as no.
func (k *kernelRoom) is() bool {
	if time.Since(k.read) >= natEvery {
		translates, err := node.TranslatesSources()
		k.translates, k.read = translates && err == nil, time.Now()
	}
	if !k.translates {
		return false
	}
	c, err := node.ReadConntrack()
	return err == nil && c.Entries < c.Max/2
}

// conditions returns what the edge does not know of the kernel's flows.
func (r *running) conditions() (all condition.List) {
	if why := datapath.NoKernelFlows(); why != "" {
		all = append(all, condition.KernelFlowsUnknown.New("answers to masqueraded pods may reach a Service's backend, because the edge cannot look them up in the kernel's conntrack: %s", why))
	}
	return all
}
