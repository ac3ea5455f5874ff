// SPDX-License-Identifier: Apache-2.0

package edge

import "net/netip"

// servingBackends returns the backends of Services on other nodes.
func (e *Edge) servingBackends() []netip.Addr {
	if e.config.Destinations == nil {
		return nil
	}
	return e.config.Destinations.RemoteBackends()
}

// Reach attaches the edge to the devices that lead to backends on other nodes, before these are selected:
// the first reply may arrive immediately.
func (e *Edge) Reach(backends []netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	reached := true
	for _, a := range backends {
		if _, known := e.remoteBackends.known[a]; known || !e.ready || !reached {
			continue
		}
		device, err := e.deviceTo(a)
		d := e.devices[device]
		reached = err == nil && d != nil && d.Backends
	}
	e.remoteBackends.add(backends)
	if !reached {
		e.reconcile(false)
	}
}
