// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// affinityClient sends a client's first packet to a Service, from a port.
func (w *world) affinityClient(t testing.TB, n uint32, service, port uint16) bpf.AffinityKey {
	t.Helper()
	p := families[0].question(udp, service)
	p.from = netip.AddrPortFrom(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 44<<24|n))), port)
	if got := w.run(t, atXDP, p.frame(t)); got.Action != model.ActionSend {
		t.Fatalf("client %d: action %v", n, got.Action)
	}
	return bpf.AffinityKey{Client: bpf.AddressFrom(p.from.Addr()), Service: uint32(service)}
}

// remembered reports whether the table has a client.
func (w *world) remembered(t testing.TB, key bpf.AffinityKey) bool {
	t.Helper()
	entry, err := bpf.AffinityOf(w.maps).Get(key)
	must(t, err)
	if entry != nil && entry.Key != key {
		t.Fatalf("the table has %+v for %+v", entry, key)
	}
	return entry != nil
}

// later ages all entries, marks included, by so many seconds.
func (w *world) later(t testing.TB, seconds uint32) {
	t.Helper()
	m := w.maps[bpf.EdgeTCMapAffinity]
	for number := range m.MaxEntries() {
		var set bpf.SockAffinitySet
		must(t, m.Lookup(number, &set))
		for place := range set.Entries {
			set.Entries[place].LastUsed -= seconds
			set.Evictions.Evictions[place].Expires -= uint32(uint64(seconds) * 1e9 >> 20)
		}
		must(t, m.Put(number, &set))
	}
}

// R27: Go finds what programs store, in the first set of a key or in the second, and programs do not find what
// Go deletes. Nearly all of the 15 places in each of a few sets are used before a live entry is evicted.
func TestAffinityIsFoundByTheAgent(t *testing.T) {
	const sets, clients = 64, 64 * 12
	w := newWorld(t, limits{affinitySets: sets})
	w.apply(t, w.scene())
	w.enter(t)
	table, found := bpf.AffinityOf(w.maps), 0
	var keys []bpf.AffinityKey
	for n := range uint32(clients) {
		keys = append(keys, w.affinityClient(t, n, sticky, 1000))
	}
	for _, key := range keys {
		if w.remembered(t, key) {
			found++
		}
	}
	live, err := table.Live()
	must(t, err)
	if found != int(live) || found < clients*97/100 {
		t.Errorf("%d of %d clients are found, %d are live", found, clients, live)
	}
	spilled := 0
	for number := range uint32(sets) {
		var set bpf.SockAffinitySet
		must(t, w.maps[bpf.EdgeTCMapAffinity].Lookup(number, &set))
		if set.Tags.Spilled != 0 {
			spilled++
		}
	}
	if spilled == 0 {
		t.Error("no set has spilled: the test proves little")
	}
	for _, key := range keys {
		must(t, table.Delete(key))
		if w.remembered(t, key) {
			t.Errorf("%+v is found after it was deleted", key)
		}
	}
	if live, err := table.Live(); live != 0 || err != nil {
		t.Errorf("%d entries live, %v", live, err)
	}
}

// R27: which client a full set evicts. No agent runs. The timeout is 1000 s.
func TestAffinityEviction(t *testing.T) {
	const places = len(bpf.SockAffinitySet{}.Entries)
	w := newWorld(t, limits{affinitySets: 1})
	tables := w.scene()
	other := tables.Frontends[model.FrontendKey{Address: families[0].vip, Port: sticky, Protocol: udp}]
	const otherSticky = 4000
	other.Service = otherSticky
	tables.Frontends[model.FrontendKey{Address: families[0].vip, Port: otherSticky, Protocol: udp}] = other
	w.apply(t, tables)
	const flood = 500
	for _, c := range []struct {
		name       string
		returning  int    // of the first clients, these return after a moment
		others     int    // clients of another Service
		away       uint32 // seconds without packets after that
		wantFirst  int    // of the first clients, this many have entries after the flood
		wantOthers int
		wantNew    bool // the last client of the flood has an entry
	}{
		{"clients that came once", 0, 0, 2, 0, 0, true},
		{"not clients that returned", 5, 0, 2, 5, 0, true},
		{"not another Service's", 0, 4, 2, 0, 4, true},
		{"nobody for now, if all have returned", places, 0, 400, places, 0, false},
		{"if all have returned, one that was idle for half of its timeout, and then only its successors", places, 0, 600, places - 1, 0, true},
		{"expired clients, even if they had returned", places - 2, 2, 1100, 0, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.enter(t)
			w.forget(t)
			var first, others []bpf.AffinityKey
			for n := range uint32(places - c.others) {
				first = append(first, w.affinityClient(t, n, sticky, 1000))
			}
			for n := range uint32(c.others) {
				others = append(others, w.affinityClient(t, n, otherSticky, 1000))
			}
			w.later(t, 2)
			for n := range uint32(c.returning) {
				w.affinityClient(t, n, sticky, 1001)
			}
			w.later(t, c.away)
			var last bpf.AffinityKey
			for n := range uint32(flood) {
				last = w.affinityClient(t, 1<<16|n, sticky, 1000)
			}
			count := func(keys []bpf.AffinityKey) (n int) {
				for _, key := range keys {
					if w.remembered(t, key) {
						n++
					}
				}
				return n
			}
			if got := count(first); got != c.wantFirst {
				t.Errorf("%d of the first clients are remembered, want %d", got, c.wantFirst)
			}
			if got := count(others); got != c.wantOthers {
				t.Errorf("%d of the other Service's clients are remembered, want %d", got, c.wantOthers)
			}
			if got := w.remembered(t, last); got != c.wantNew {
				t.Errorf("the last one of the flood is remembered: %v, want %v", got, c.wantNew)
			}
		})
	}
}
