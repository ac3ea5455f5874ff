// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// serving are the backends of Services on other nodes.
func (e *Edge) serving() []netip.Addr {
	if e.config.Backends == nil {
		return nil
	}
	return e.config.Backends()
}

// Reach sees to it that the edge is at the devices that lead to backends on other nodes,
// before these are chosen: the first answer may come at once.
func (e *Edge) Reach(backends []netip.Addr) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	reached := true
	for _, a := range backends {
		if _, known := e.elsewhere.known[a]; known || !e.ready || !reached {
			continue
		}
		device, err := e.wayTo(a)
		d := e.devices[device]
		reached = err == nil && d != nil && d.Backends
	}
	e.elsewhere.add(backends)
	if !reached {
		e.reconcile(false)
	}
}

// wayTo is the index of the device by which the kernel sends to an address.
func wayTo(a netip.Addr) (device int, err error) {
	ways, err := netlink.RouteGet(a.AsSlice())
	if err != nil || len(ways) == 0 {
		return 0, fmt.Errorf("the way to %s: %w", a, err)
	}
	return ways[0].LinkIndex, nil
}
