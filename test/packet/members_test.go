// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/test/packet/model"
)

// place is where a frontend has a set: for a source class, or as its retained backends.
type place int

const (
	forPods place = iota
	forNodes
	forOutside
	kept
	places
)

// putSet gives a frontend a set in some places, and another set of one backend in the others. It allows more
// members than a model's tables have; weights are 1 unless given.
func (w *world) putSet(t testing.TB, key model.FrontendKey, kind model.DSR, members []netip.AddrPort, weights []int, local bool, in ...place) {
	t.Helper()
	const firstBackend, firstSlot = 100, 512
	slot := uint32(firstSlot)
	store := func(v uint32) {
		w.put(t, bpf.EdgeTCMapSlots, slot, v)
		slot++
	}
	write := func(id uint32, a netip.AddrPort) {
		row := bpf.Backend{Address: bpf.AddressFrom(a.Addr()), Node: bpf.AddressFrom(a.Addr()), Port: bpf.NetworkOrder(a.Port())}
		if local {
			row.Local = 1
		}
		w.put(t, bpf.EdgeTCMapBackends, id, row)
	}
	write(firstBackend-1, on(members[0].Addr().Prev(), 1))
	store(firstBackend - 1)
	var ids []uint32
	for n, a := range members {
		write(firstBackend+uint32(n), a)
		for range max(1, append(weights, make([]int, len(members))...)[n]) {
			ids = append(ids, firstBackend+uint32(n))
		}
	}
	set := codec.Range{First: slot, Count: uint32(len(ids))}
	for _, id := range ids {
		store(id)
	}
	var at uint32
	var row bpf.Frontend
	must(t, w.maps[bpf.EdgeTCMapFrontends].Lookup(frontendKey(key), &at))
	must(t, w.maps[bpf.EdgeTCMapFrontendRows].Lookup(at, &row))
	row.Dsr, row.Flags, row.Lists = uint8(kind), 0, 0
	lists := bpf.FrontendLists{}
	for class := range row.Decisions {
		row.Decisions[class] = bpf.Decision{First: firstSlot, Count: 1}
		if slices.Contains(in, place(class)) {
			row.Decisions[class] = bpf.Decision(set)
		}
		lists.Members[class] = codec.Range(row.Decisions[class])
	}
	if slices.Contains(in, kept) {
		lists.Retained, row.Lists = set, at
		w.put(t, bpf.EdgeTCMapFrontendListRows, at, lists)
	}
	w.put(t, bpf.EdgeTCMapFrontendRows, at, row)
}

// randomMembers are endpoints all over the pod network, in the order of a set.
func (f family) randomMembers(r *rand.Rand, n int) (members []netip.AddrPort) {
	taken := map[netip.AddrPort]bool{}
	for len(members) < n {
		a := netip.AddrFrom4([4]byte{10, 10, byte(r.Uint32()), byte(r.Uint32())})
		if f.client.Is6() {
			b := [16]byte{0xfd, 0, 0, 0x10}
			for i := 4; i < len(b); i++ {
				b[i] = byte(r.Uint32()) & byte(r.IntN(2)*0xff) // many share halves
			}
			a = netip.AddrFrom16(b)
		}
		member := on(a, pickOf[uint16](r, 1, 80, 8080, 0x0100, 0x00ff, 0x8000, 65535))
		if !taken[member] {
			taken[member] = true
			members = append(members, member)
		}
	}
	slices.SortFunc(members, netip.AddrPort.Compare)
	return members
}

func pickOf[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

// Each member of a set is found, and nothing else, whatever the set's size and weights and wherever the
// frontend has it: a packet that a balancer sends to a member is decapsulated, and one to an address or port
// next to it is dropped.
func TestMembersAreFound(t *testing.T) {
	const port = toMany + uint16(model.Geneve)
	w := newDSRScene(t)
	r := rand.New(rand.NewPCG(1, 2))
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		for n, size := range []int{1, 2, 3, 4, 5, 8, 33} {
			where := place(n) % places
			members, weights := f.randomMembers(r, size), []int{}
			for range members {
				weights = append(weights, 1+r.IntN(3))
			}
			w.putSet(t, model.FrontendKey{Address: f.vip, Port: port, Protocol: tcp}, model.Geneve, members, weights, true, where)
			question := f.question(tcp, port)
			for n, member := range members {
				t.Run(fmt.Sprintf("%d of %d in place %d", n, size, where), func(t *testing.T) {
					w.enter(t)
					w.forget(t)
					asked := f.fromBalancer(question, member)
					w.opens(t, at, wrapGeneve(t, f, asked), asked.translated(asked.from, member))
					for _, beside := range []netip.AddrPort{on(member.Addr(), member.Port()^0x101), on(member.Addr().Next(), member.Port()), on(member.Addr().Prev(), member.Port())} {
						if !slices.Contains(members, beside) && beside != on(members[0].Addr().Prev(), 1) {
							w.forget(t)
							w.drops(t, at, wrapGeneve(t, f, f.fromBalancer(question, beside)), model.DropBackendNotLocal)
						}
					}
				})
			}
		}
	})
}
