// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/plural"
	"beeline.io/beeline/internal/util/wakeup"
)

// dropsInterval is how often the counters of packets that did not reach a backend are read.
const dropsInterval = 2 * time.Second

// dropsShown is for how long dropped packets are a condition, unless what they lacked is there again.
const dropsShown = time.Minute

// maxDropsNamed is how many backends a condition names.
const maxDropsNamed = 3

// drops are the packets of clients that did not reach a backend on another node.
type drops struct {
	reading    sync.Mutex // one reading at a time: a later one has larger counts
	known      bool       // the counters have been read: what they have grown by since is new
	backends   map[bpf.BackendLossKey]*dropCounter
	clients    dropCounter // all packets without a route that are not in backends: replies, and refusals
	conditions condition.List
}

// A dropCounter is of one backend and reason, or of all packets to clients.
type dropCounter struct {
	packets uint64 // as last read
	cause   dropCause
	samples []dropSample // of the last minute, oldest first
}

type dropSample struct {
	at      time.Time
	packets uint64
}

// A dropCause is what a packet lacks. Backends with the same cause share a condition.
type dropCause struct {
	what string
	// over: what the packet lacked is there.
	over bool
}

// followDrops reads the counters until ctx ends.
func (e *Edge) followDrops(ctx context.Context) {
	for running := true; running; running = wakeup.Sleep(ctx, dropsInterval) {
		e.countDrops(time.Now())
	}
}

// CountDrops reads the counters now, for a status without delay.
func (e *Edge) CountDrops() { e.countDrops(time.Now()) }

// countDrops reads the counters, and makes conditions of those that have grown in the last minute. Counters that cannot
// be read count as unchanged; status reports missing tables.
func (e *Edge) countDrops(now time.Time) {
	e.drops.reading.Lock()
	defer e.drops.reading.Unlock()
	all, err := e.withoutRoute() // before the rows: these may have more, not fewer
	if err != nil {
		return
	}
	rows, err := e.datapath.BackendLosses().All()
	if err != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	d := &e.drops
	toBackends := uint64(0)
	before := d.backends
	d.backends = map[bpf.BackendLossKey]*dropCounter{}
	for key, row := range rows {
		b := before[key]
		if b == nil {
			b = &dropCounter{}
			if !d.known {
				b.packets = row.Packets
			}
		}
		d.backends[key] = b
		grown := b.grow(row.Packets)
		if key.Reason == bpf.LostWithoutRoute {
			toBackends += grown
		}
		if grown > 0 || len(b.samples) > 0 {
			b.note(now, grown, e.causeOf(key, &row))
		}
	}
	if grown := d.clients.grow(all); d.known {
		d.clients.note(now, grown-min(grown, toBackends), dropCause{})
	}
	d.known = true
	conditions := e.dropConditions()
	for _, c := range conditions {
		if !d.conditions.HasCode(c.Code) {
			c.Log(e.config.Log, "the edge")
		}
	}
	d.conditions = conditions
}

// withoutRoute returns how many packets of any kind have had no route.
func (e *Edge) withoutRoute() (uint64, error) {
	if e.config.Counters == nil {
		return 0, nil
	}
	counters, err := e.config.Counters()
	return counters[bpf.ReasonName(uint8(bpf.LostWithoutRoute))], err
}

// grow returns what a counter has grown by. One that is smaller than before had been removed for others.
func (b *dropCounter) grow(packets uint64) uint64 {
	before := b.packets
	b.packets = packets
	if packets < before {
		return packets
	}
	return packets - before
}

// note adds a reading. When a cause is over, so is the condition; packets of that reading were dropped before it. They
// count if more follow although nothing seems to be missing.
func (b *dropCounter) note(now time.Time, grown uint64, cause dropCause) {
	if cause != b.cause {
		b.cause, b.samples = cause, nil
		if cause.over {
			return
		}
	}
	b.samples = slices.DeleteFunc(b.samples, func(s dropSample) bool { return now.Sub(s.at) >= dropsShown })
	if grown > 0 {
		b.samples = append(b.samples, dropSample{now, grown})
	}
}

// lost returns the packets of the last minute.
func (b *dropCounter) lost() (packets uint64) {
	for _, s := range b.samples {
		packets += s.packets
	}
	return packets
}

// causeOf returns what packets to a backend lack. The caller holds the lock.
func (e *Edge) causeOf(key bpf.BackendLossKey, row *bpf.BackendLoss) dropCause {
	backend, asked := addressOf(key.Backend.Bytes), addressOf(row.Asked.Bytes)
	switch key.Reason {
	case bpf.LostWithoutAddress:
		return e.addressCause(row.Device, backend)
	case bpf.LostWithoutPort:
		return dropCause{what: "no SNAT port is free to that backend"}
	}
	to := "that backend"
	if asked != backend {
		to = fmt.Sprintf("its node %s", asked)
	}
	for i := range e.unusable {
		if r := &e.unusable[i]; r.To.Contains(asked) {
			return dropCause{what: fmt.Sprintf("the edge cannot send by the route to %s, %s", to, r)}
		}
	}
	return routeCause(to, e.routeError(asked))
}

// addressCause: the device of a route has no address to send from.
func (e *Edge) addressCause(device uint32, to netip.Addr) dropCause {
	d := e.tables[device]
	family, own := "IPv4", d.Source4.Bytes
	if to.Is6() {
		family, own = "IPv6", d.Source6.Bytes
	}
	return dropCause{what: fmt.Sprintf("device %s, by which the route to that backend leads, has no %s address to send from", deviceName(int(device)), family), over: own != [16]uint8{}}
}

// routeCause names what the kernel says of a route (ip_route_input_rcu, fib_props).
func routeCause(to string, err error) dropCause {
	switch {
	case err == nil:
		return dropCause{what: "the node had no route to " + to, over: true}
	case errors.Is(err, unix.EHOSTUNREACH):
		return dropCause{what: "a route of type unreachable leads to " + to}
	case errors.Is(err, unix.EACCES):
		return dropCause{what: "a route of type prohibit leads to " + to}
	case errors.Is(err, unix.EINVAL):
		return dropCause{what: "a route of type blackhole leads to " + to}
	}
	return dropCause{what: "the node has no route to " + to}
}

func (e *Edge) routeError(a netip.Addr) error {
	_, err := e.deviceTo(a)
	return err
}

func addressOf(bytes [16]uint8) netip.Addr { return netip.AddrFrom16(bytes).Unmap() }

// dropConditions returns a condition for each cause.
func (e *Edge) dropConditions() (all condition.List) {
	byCause := map[dropCause][]bpf.BackendLossKey{}
	for key, b := range e.drops.backends {
		if b.lost() > 0 {
			byCause[b.cause] = append(byCause[b.cause], key)
		}
	}
	for cause, keys := range byCause {
		slices.SortFunc(keys, func(a, b bpf.BackendLossKey) int {
			return cmp.Or(cmp.Compare(e.drops.backends[b].lost(), e.drops.backends[a].lost()), addressOf(a.Backend.Bytes).Compare(addressOf(b.Backend.Bytes)))
		})
		var lost uint64
		var names []string
		for i, key := range keys {
			lost += e.drops.backends[key].lost()
			if i < maxDropsNamed {
				names = append(names, e.backendName(addressOf(key.Backend.Bytes)))
			}
		}
		if more := len(keys) - len(names); more > 0 {
			names = append(names, fmt.Sprintf("and %d more", more))
		}
		all = append(all, condition.EdgeDropsToBackend.New("%s in the last minute did not reach %s: %s", plural.Of(lost, "packet", "of clients"), strings.Join(names, ", "), cause.what))
	}
	if lost := e.drops.clients.lost(); lost > 0 {
		all = append(all, condition.EdgeDropsToClients.New("%s in the last minute had a client to which the node has no route", plural.Of(lost, "packet", "of Services")))
	}
	return all.Sort()
}

// backendName describes a backend and the objects that it serves.
func (e *Edge) backendName(a netip.Addr) string {
	var owners []string
	if e.config.Destinations != nil {
		for _, ref := range e.config.Destinations.ServicesOf(a) {
			owners = append(owners, ref.String())
		}
	}
	if len(owners) == 0 {
		return "backend " + a.String()
	}
	if more := len(owners) - maxDropsNamed; more > 0 {
		owners = append(owners[:maxDropsNamed], fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("backend %s of %s", a, strings.Join(owners, ", "))
}
