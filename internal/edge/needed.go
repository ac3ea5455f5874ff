// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/datapath"
)

// needed is what the edge has to be there for: what is asked for, and what is asked for
// no more while flows that need it go on.
type needed[K comparable] struct {
	// known says of each whether it was asked for since the last walk through all flows
	// began, which may have flows that the walk has not met.
	known map[K]bool
}

func (n *needed[K]) add(all []K) {
	if n.known == nil {
		n.known = make(map[K]bool, len(all))
	}
	for _, k := range all {
		n.known[k] = true
	}
}

// begin notes that a walk begins.
func (n *needed[K]) begin(asked []K) {
	for k := range n.known {
		n.known[k] = false
	}
	n.add(asked)
}

// end forgets what neither anybody nor flows have. It says whether there was any.
func (n *needed[K]) end(inFlows map[K]struct{}) bool {
	before := len(n.known)
	for k, asked := range n.known {
		if _, ok := inFlows[k]; !ok && !asked {
			delete(n.known, k)
		}
	}
	less := len(n.known) < before
	for k := range inFlows {
		if _, ok := n.known[k]; !ok {
			n.known[k] = false
		}
	}
	return less
}

// inFlows are the backends on other nodes of some flows, and the devices that these
// flows' clients are behind, by index.
type inFlows struct {
	backends map[netip.Addr]struct{}
	devices  map[int]struct{}
}

func newInFlows() *inFlows {
	return &inFlows{map[netip.Addr]struct{}{}, map[int]struct{}{}}
}

// note takes a record of a flow.
func (f *inFlows) note(key datapath.Tuple, t *datapath.Track) {
	if addr, ok := flowBackend(key, t); ok {
		f.backends[addr] = struct{}{}
	}
	if device, ok := flowDevice(t); ok {
		f.devices[device] = struct{}{}
	}
}

// flowBackend is the backend of a flow by one of its records; ok is false if that is on
// this node. So is one that is its own client (R19), without the flag of others here. With
// DSR no answer comes by the device that leads there, but encapsulated packets leave with its
// address, and ICMP errors about them come by it.
func flowBackend(key datapath.Tuple, t *datapath.Track) (addr netip.Addr, ok bool) {
	if t.Flags&uint8(datapath.TrackLocal) != 0 || key.Source == t.Becomes.Destination {
		return addr, false
	}
	backend := datapath.Address(t.Becomes.Destination)
	if t.Flags&uint8(datapath.TrackReply) != 0 {
		backend = datapath.Address(key.Source)
	}
	return backend.Addr(), true
}

// flowDevice is the device that a flow's client is behind. The flows that this node's
// clients began on their way out need none.
func flowDevice(t *datapath.Track) (device int, ok bool) {
	return int(t.Device), t.Device != 0 && t.Flags&uint8(datapath.TrackOutbound) == 0
}

// noteEarlier has an earlier agent's backends and devices as needed: those of its flows,
// and where it was, for which the next walk decides.
func (e *Edge) noteEarlier() error {
	flows, found := e.datapath.Flows(), newInFlows()
	var failed error
	for _, table := range []datapath.FlowTable{flows.HalfOpen, flows.Tracks} {
		failed = errors.Join(failed, table.Walk(func(key datapath.Tuple, t *datapath.Track) bool {
			found.note(key, t)
			return true
		}))
	}
	attached, err := e.datapath.EdgeAttachments()
	for _, a := range attached {
		found.devices[a.Device] = struct{}{}
	}
	e.elsewhere.add(slices.Collect(maps.Keys(found.backends)))
	e.entered.add(slices.Collect(maps.Keys(found.devices)))
	return errors.Join(failed, err)
}

// asked are the devices that are served for more than flows that go on.
func (e *Edge) asked() (all []int) {
	for index, d := range e.devices {
		if !d.Lingers {
			all = append(all, index)
		}
	}
	return all
}
