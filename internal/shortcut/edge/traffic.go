// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"cmp"
	"net/netip"
	"sync"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/report/metrics"
)

// traffic counts the traffic of Services for the metrics (conntrack.Subscriber). Entries count the packets of flows
// that exist, tables those of flows that are gone: their sum is taken in each GC pass.
type traffic struct {
	// counters reads the tables (bpf.ReadServiceCounters), names the Services' ports by ID.
	counters func() (map[uint32]bpf.ServiceCounters, error)
	names    func() (map[uint32]bpf.ServiceName, error)
	drops    func() (map[bpf.FrontendKey]uint64, error) // by policy Local (Datapath.PolicyDrops)
	backends bool                                       // count flows by backend

	// Of the pass in progress.
	sums  map[uint32]bpf.ServiceCounters
	flows map[flowsKey]int
	err   error

	mu sync.Mutex
	// before are the sums of the last pass, by port. Totals only grow: a flow that is evicted takes its counts
	// away from the sum, but not from the total.
	before    map[portID]bpf.ServiceCounters
	totals    map[service.Ref]bpf.ServiceCounters
	byBackend map[backendRef]int
	failed    error
	refusals  refusals
}

// portID is an ID and the port that it stands for: it is given to another port when the first is gone.
type portID struct {
	id   uint32
	port service.Port
}

type flowsKey struct {
	id      uint32
	backend netip.AddrPort
}

type backendRef struct {
	service service.Ref
	backend netip.AddrPort
}

// change notes which frontends drop packets of clients.
func (t *traffic) change(d service.Delta) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refusals.change(d)
}

// Begin reads the counters of flows that are gone. Flows that this pass deletes are seen by Entry before.
func (t *traffic) Begin() {
	t.sums, t.err = t.counters()
	if t.sums == nil {
		t.sums = map[uint32]bpf.ServiceCounters{}
	}
	t.flows = map[flowsKey]int{}
}

// Entry adds the counts of an entry.
func (t *traffic) Entry(key conntrack.Tuple, e *conntrack.Entry) {
	sum := t.sums[e.Lb.Service]
	sum.AddEntry(e)
	t.sums[e.Lb.Service] = sum
	if t.backends && !e.IsReply() {
		t.flows[flowsKey{e.Lb.Service, e.Connection(key).Backend}]++
	}
}

// End adds what is new to the totals.
func (t *traffic) End() error {
	names, err := t.names()
	drops, dropsErr := t.drops()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed = cmp.Or(t.err, err, dropsErr); t.failed != nil {
		return nil // the metrics report it
	}
	before, totals := t.before, map[service.Ref]bpf.ServiceCounters{}
	uses, exists := map[service.Port]portUse{}, map[service.Port]bool{}
	t.before, t.byBackend = make(map[portID]bpf.ServiceCounters, len(names)), map[backendRef]int{}
	refs := make(map[uint32]service.Ref, len(names))
	for id, name := range names {
		port := codec.PortOf(name)
		refs[id], exists[port] = port.Owner, true
		sum := t.sums[id]
		if sum == (bpf.ServiceCounters{}) {
			continue
		}
		this := portID{id, port}
		t.before[this] = sum
		total, counted := totals[port.Owner]
		if !counted {
			total = t.totals[port.Owner]
		}
		grow(&total, sum, before[this])
		if before != nil { // what this agent has not seen happen is older
			var grown bpf.ServiceCounters
			grow(&grown, sum, before[this])
			uses[port] = useOf(grown)
		}
		totals[port.Owner] = total
	}
	t.totals = totals
	dropped := make(map[service.FrontendKey]uint64, len(drops))
	for key, n := range drops {
		dropped[codec.FrontendKeyOf(key)] = n
	}
	t.refusals.note(time.Now(), uses, dropped, func(p service.Port) bool { return exists[p] })
	for key, n := range t.flows {
		if ref, ok := refs[key.id]; ok {
			t.byBackend[backendRef{ref, key.backend}] += n
		}
	}
	return nil
}

// grow adds what sum has more than before.
func grow(total *bpf.ServiceCounters, sum, before bpf.ServiceCounters) {
	add := func(to *uint64, now, then uint64) {
		if now > then {
			*to += now - then
		}
	}
	add(&total.Flows, sum.Flows, before.Flows)
	add(&total.Refused, sum.Refused, before.Refused)
	add(&total.Dropped, sum.Dropped, before.Dropped)
	add(&total.SentPackets, sum.SentPackets, before.SentPackets)
	add(&total.SentBytes, sum.SentBytes, before.SentBytes)
	add(&total.ReceivedPackets, sum.ReceivedPackets, before.ReceivedPackets)
	add(&total.ReceivedBytes, sum.ReceivedBytes, before.ReceivedBytes)
}

// metrics adds the totals of the last pass. The error is why they are old.
func (t *traffic) metrics(b *metrics.Batch) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for ref, c := range t.totals {
		labels := metrics.Labels("namespace", ref.Namespace, "service", ref.Name)
		b.AddLabels("beeline_service_flows_total", float64(c.Flows), labels)
		b.AddLabels("beeline_service_refused_total", float64(c.Refused), labels)
		b.AddLabels("beeline_service_dropped_total", float64(c.Dropped), labels)
		sent := metrics.Labels("namespace", ref.Namespace, "service", ref.Name, "direction", "sent")
		received := metrics.Labels("namespace", ref.Namespace, "service", ref.Name, "direction", "received")
		b.AddLabels("beeline_service_packets_total", float64(c.SentPackets), sent)
		b.AddLabels("beeline_service_packets_total", float64(c.ReceivedPackets), received)
		b.AddLabels("beeline_service_bytes_total", float64(c.SentBytes), sent)
		b.AddLabels("beeline_service_bytes_total", float64(c.ReceivedBytes), received)
	}
	for key, n := range t.byBackend {
		b.Add("beeline_backend_flows", float64(n), "namespace", key.service.Namespace, "service", key.service.Name, "backend", key.backend.String())
	}
	return t.failed
}
