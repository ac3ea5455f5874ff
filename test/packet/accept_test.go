// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// accept sets which encapsulations of balancers are accepted.
func (w *world) accept(t testing.TB, kinds bpf.Accepted) {
	t.Helper()
	var ends bpf.UntrackedEnds
	must(t, w.maps[bpf.EdgeTCMapUntrackedFrontends].Lookup(uint32(0), &ends))
	ends.Accepted = kinds
	w.put(t, bpf.EdgeTCMapUntrackedFrontends, uint32(0), ends)
}

// While nobody uses a kind of DSR, such packets are not decapsulated, whoever sends them and whatever Services
// exist: they do not belong to a Service, and no byte changes.
func TestOpenedOnlyWhereInUse(t *testing.T) {
	w := newDSRScene(t)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		defer w.accept(t, bpf.AcceptTunnels|bpf.AcceptOption)
		kind, other := bpf.AcceptTunnels, bpf.AcceptOption
		if how.kind == model.Opt {
			kind, other = other, kind
		}
		frame := how.wrap(t, f, question)
		for _, accepted := range []bpf.Accepted{0, other} {
			w.accept(t, accepted)
			before := w.counts(t)
			w.ignores(t, at, frame)
			w.counted(t, before, model.NotService)
			w.remembersNothing(t)
		}
		w.accept(t, kind)
		w.opens(t, at, frame, question.translated(question.from, question.backend))
	})
}

// A node accepts nothing from its own address: a pod that forges it is no balancer, although the node's network
// is one of balancers. Other people's tunnels pass, as from anybody.
func TestOwnAddressIsNoBalancer(t *testing.T) {
	w := newWorld(t, limits{})
	tables := w.dsrScene()
	for _, f := range families {
		tables.Balancers = append(tables.Balancers, netip.PrefixFrom(f.own, f.own.BitLen()-8).Masked())
	}
	w.apply(t, tables)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		own := tables.Devices[w.index["eth1"]] // not the address of the receiving device
		for _, forged := range []netip.Addr{f.own, own[0], own[1]} {
			if forged.BitLen() != f.own.BitLen() {
				continue
			}
			if how.kind == model.Opt {
				question := question
				question.from = on(forged, clientPort)
				if forged == f.own {
					w.drops(t, at, how.wrap(t, f, question), model.DropSpoofed)
				}
				continue
			}
			question := question
			question.balancer = forged
			w.drops(t, at, how.wrap(t, f, question), model.DropSpoofed)
			question.to = on(f.client.Next(), 443)
			before := w.counts(t)
			w.ignores(t, at, how.wrap(t, f, question))
			w.counted(t, before, model.NotService)
		}
		w.remembersNothing(t)
		question.balancer = f.own.Next().Next() // another address of that network
		w.opens(t, at, how.wrap(t, f, question), question.translated(question.from, question.backend))
	})
}
