// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack"
)

// flowRefs are the backends on other nodes that flows have, and the indexes of the devices that the flows'
// clients are behind.
type flowRefs struct {
	backends map[netip.Addr]struct{}
	devices  map[int]struct{}
	now      uint32 // when the walk began, in seconds of CLOCK_MONOTONIC
}

// afterClose is for how long the last segments of a closed connection may be repeated, in seconds. Its entries last
// longer, to keep others from its ports.
const afterClose = 10

func newFlowRefs() *flowRefs {
	return &flowRefs{map[netip.Addr]struct{}{}, map[int]struct{}{}, bpf.Now()}
}

// note handles a conntrack entry.
func (f *flowRefs) note(key conntrack.Tuple, t *conntrack.Entry) {
	if t.State == uint8(bpf.ConntrackClosed) && int32(f.now-t.LastSeen) > afterClose {
		return
	}
	if addr, ok := flowBackend(key, t); ok {
		f.backends[addr] = struct{}{}
	}
	if device, ok := flowDevice(t); ok {
		f.devices[device] = struct{}{}
	}
}

// flowBackend returns the backend of a flow by one of its conntrack entries; ok is false if the backend is
// on this node. That includes a backend that is its own client (R19), whose entries lack ConntrackLocal.
// With DSR no reply arrives by the device that leads to the backend, but encapsulated packets have that
// device's address as source, and ICMP errors about them arrive by it.
func flowBackend(key conntrack.Tuple, t *conntrack.Entry) (addr netip.Addr, ok bool) {
	if t.IsLocal() || key.Source == t.Xlate.Destination {
		return addr, false
	}
	if t.IsReply() {
		return key.From().Addr(), true
	}
	return t.Xlate.To().Addr(), true
}

// flowDevice returns the device that a flow's client is behind. Flows that began at egress, from clients on
// this node, need none.
func flowDevice(t *conntrack.Entry) (device int, ok bool) {
	return int(t.Device), t.Device != 0 && t.Flags&uint8(bpf.ConntrackOutbound) == 0
}

// FlowRefs keeps the edge attached to the devices that flows still need, by walks of all conntrack entries
// (conntrack.Subscriber).
type FlowRefs struct {
	edge  *Edge
	found *flowRefs
}

// FlowRefs returns a subscriber that keeps the edge attached to the devices that flows still need.
func (e *Edge) FlowRefs() *FlowRefs { return &FlowRefs{edge: e} }

// Begin notes the backends and devices that are needed for other reasons than flows.
func (f *FlowRefs) Begin() {
	e := f.edge
	f.found = newFlowRefs()
	serving := e.servingBackends()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.remoteBackends.begin(serving)
	e.entered.begin(e.wantedDevices())
}

// Entry notes the backend and the device of an entry.
func (f *FlowRefs) Entry(key conntrack.Tuple, t *conntrack.Entry) { f.found.note(key, t) }

// End forgets the backends and devices that nothing needs any more.
func (f *FlowRefs) End() error {
	e := f.edge
	e.mu.Lock()
	defer e.mu.Unlock()
	backends, devices := e.remoteBackends.end(f.found.backends), e.entered.end(f.found.devices)
	if backends || devices {
		e.changed.Send()
	}
	return nil
}

// noteEarlier marks the backends and devices of an earlier agent as needed: those of its flows, and the
// devices that its programs are attached to. The next walk decides about the latter.
func (e *Edge) noteEarlier() error {
	found := newFlowRefs()
	failed := e.flows.Walk(found.note)
	attached, err := e.datapath.EdgeAttachments()
	for _, a := range attached {
		found.devices[a.Device] = struct{}{}
	}
	e.remoteBackends.add(slices.Collect(maps.Keys(found.backends)))
	e.entered.add(slices.Collect(maps.Keys(found.devices)))
	return errors.Join(failed, err)
}

// wantedDevices returns the indexes of the devices that are needed for other reasons than flows.
func (e *Edge) wantedDevices() (all []int) {
	for index, d := range e.devices {
		if !d.Draining {
			all = append(all, index)
		}
	}
	return all
}
