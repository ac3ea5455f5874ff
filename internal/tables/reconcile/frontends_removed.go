// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"net/netip"

	"beeline.io/beeline/internal/cluster/service"
)

// removals are what changes have removed since it was last asked for.
type removals struct {
	backends map[service.Protocol]bool // protocols with frontends that have lost a backend
	udp      map[netip.AddrPort]bool   // UDP frontends
}

// note compares the backends of a frontend before and after a change.
func (r *removals) note(key service.FrontendKey, c change) {
	before, now := c.before, c.now
	if now == nil && key.Protocol == service.UDP && len(r.udp) < removedUDPLimit {
		r.udp[netip.AddrPortFrom(key.Addr, key.Port)] = true
	}
	if r.backends[key.Protocol] {
		return
	}
	if before == nil || now != nil && !before.content.SameFlags(&now.content) {
		// On one loopback address it shadows the frontend of all of 127.0.0.0/8.
		r.backends[key.Protocol] = key.Addr.Is4() && key.Addr.IsLoopback()
		if before == nil {
			return
		}
	}
	serving := map[netip.AddrPort]bool{}
	if now != nil {
		if now.sets == before.sets {
			return
		}
		for b := range now.sets.members {
			serving[b.key.AddrPort()] = true
		}
	}
	for b := range before.sets.members {
		if !serving[b.key.AddrPort()] {
			r.backends[key.Protocol] = true
			return
		}
	}
}

// removedUDPLimit bounds removals.udp.
const removedUDPLimit = 65536
