// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// dsrRecords checks that a flow has both entries, and that neither has a device.
func (w *world) dsrRecords(t testing.TB, want int) {
	t.Helper()
	n := 0
	for _, table := range []string{tracks, halfOpen} {
		must(t, w.flowTable(table).Walk(func(key bpf.Tuple, value *bpf.ConntrackEntry) bool {
			n++
			if value.Device != 0 || value.Flags&2 == 0 || value.Flags&16 == 0 {
				t.Errorf("table %s, %v: device %d, flags %#x: want 0, and the flags of a local backend and of DSR", table, modelTuple(key), value.Device, value.Flags)
			}
			return true
		}))
	}
	if n != want {
		t.Errorf("%d conntrack entries, want %d", n, want)
	}
}

// opens runs a frame that must be decapsulated to the packet wanted. The output may be shorter than Ethernet's
// minimum.
func (w *world) opens(t testing.TB, at hook, frame []byte, want probe) {
	t.Helper()
	w.opensTo(t, at, frame, want.frame(t))
}

func (w *world) opensTo(t testing.TB, at hook, frame, want []byte) {
	t.Helper()
	got := w.run(t, at, frame)
	if got.Action != model.ActionPass {
		t.Fatalf("%s: action %v, want 0 (passed)\n%s", at, got.Action, hex.Dump(frame))
	}
	padded := append(slices.Clone(got.Frame), make([]byte, max(0, len(want)-len(got.Frame)))...)
	if !bytes.Equal(padded, want) {
		t.Fatalf("%s: decapsulated to\n%swant\n%s", at, hex.Dump(got.Frame), hex.Dump(want))
	}
}

// A packet that a balancer sends to this node for one of its backends arrives there as the client sent it, and
// the reply leaves in the Service's name.
func TestDecapsulated(t *testing.T) {
	w := newDSRScene(t)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		for _, backend := range []netip.Addr{f.local, f.local.Next()} {
			w.forget(t)
			question := question
			question.backend = on(backend, targetPort)
			w.opens(t, at, how.wrap(t, f, question), question.translated(question.from, question.backend))
			w.dsrRecords(t, 2)
			answer := reply(question.backend, question.from, question.protocol)
			w.passes(t, atEgress, answer.frame(t), answer.translated(question.to, question.from))
			question.hops, question.flags, question.seq, question.ack = 1, ack, question.seq+1, 78
			question.payload = []byte("more, and odd")
			w.opens(t, at, how.wrap(t, f, question), question.translated(question.from, question.backend))
			w.dsrRecords(t, 2)
			want := [model.Reasons]uint64{model.New: 1, model.Established: 1, model.Reply: 1}
			if got := w.counts(t); got != want {
				t.Errorf("counted %v, want %v", got, want)
			}
		}
	})
}

// Only balancers' packets are decapsulated: what others encapsulate for a Service is dropped, and leaves no
// state.
func TestEncapsulatedByAStranger(t *testing.T) {
	w := newDSRScene(t)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		strangers := []netip.Addr{f.client, f.pod, f.balancer().Next()}
		if how.kind == model.Opt { // its source is the client, which is outside the cluster
			strangers = []netip.Addr{f.pod, f.balancer(), f.local.Next()}
		}
		for _, stranger := range strangers {
			forged := question
			forged.balancer = stranger
			if how.kind == model.Opt {
				forged.from = on(stranger, clientPort)
			}
			w.drops(t, at, how.wrap(t, f, forged), model.DropSpoofed)
		}
		w.remembersNothing(t)
		// Nor can they continue a flow that a balancer began.
		w.run(t, at, how.wrap(t, f, question))
		if how.kind != model.Opt {
			question.balancer = strangers[0]
			w.drops(t, at, how.wrap(t, f, question), model.DropSpoofed)
		}
	})
}

// A packet with an option needs a Service that uses it, and a backend of that Service.
func TestOptionOfAnotherService(t *testing.T) {
	w := newDSRScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		for _, port := range []uint16{toMany + uint16(model.IPIP), toMany + uint16(model.Geneve), toLocal} {
			question := f.fromBalancer(f.question(protocol, port), on(f.local, targetPort))
			w.drops(t, at, wrapOption(t, f, question), model.DropSpoofed)
		}
		w.remembersNothing(t)
	})
}

// Nothing is sent to a backend that the Service does not have on this node.
func TestEncapsulatedForAnotherBackend(t *testing.T) {
	w := newDSRScene(t)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		reason := model.DropBackendNotLocal
		if how.kind == model.Opt {
			reason = model.DropSpoofed
		}
		absent := f.local.Next().Next()
		question.backend = on(absent, targetPort)
		w.drops(t, at, how.wrap(t, f, question), reason)
		if how.kind != model.IPIP { // which carries no port
			question.backend = on(f.local, targetPort+1)
			w.drops(t, at, how.wrap(t, f, question), reason)
		}
		// A backend of node-b is not this node's: on its way there the packet passes, and in Geneve it
		// has already arrived at its node.
		question.backend = on(f.remote, targetPort)
		if how.kind == model.Geneve {
			w.drops(t, at, how.wrap(t, f, question), model.DropBackendNotLocal)
		} else {
			before := w.counts(t)
			w.ignores(t, at, how.wrap(t, f, question))
			w.counted(t, before, model.NotService)
		}
		w.remembersNothing(t)
	})
}

// The source ranges of a Service apply to the inner packet's source.
func TestEncapsulatedSourceRanges(t *testing.T) {
	w := newWorld(t, limits{})
	tables := w.dsrScene()
	for key, frontend := range tables.Frontends {
		if key.Port > toMany && key.Port <= toMany+uint16(model.Opt) {
			frontend.SourceSet = 7
			tables.Frontends[key] = frontend
		}
	}
	w.apply(t, tables)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		w.opens(t, at, how.wrap(t, f, question), question.translated(question.from, question.backend))
		question.from = on(f.client.Next(), clientPort)
		w.drops(t, at, how.wrap(t, f, question), model.DropSource)
	})
}

// The client asked a NodePort of another node: it is this node's, too.
func TestEncapsulatedNodePort(t *testing.T) {
	w := newWorld(t, limits{})
	tables := w.dsrScene()
	const nodePort = 30080
	for _, f := range families {
		for _, protocol := range []uint8{tcp, udp} {
			for _, how := range wrappings {
				frontend := tables.Frontends[model.FrontendKey{Address: f.vip, Port: toMany + uint16(how.kind), Protocol: protocol}]
				frontend.NodePort = how.kind != model.Geneve // with Geneve it is a Service's frontend on a node address
				tables.Frontends[model.FrontendKey{Address: f.own, Port: nodePort + uint16(how.kind), Protocol: protocol}] = frontend
			}
		}
	}
	w.apply(t, tables)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		question.to = on(f.balancer(), nodePort+uint16(how.kind))
		if how.kind == model.Geneve {
			w.ignores(t, at, how.wrap(t, f, question))
			return
		}
		w.opens(t, at, how.wrap(t, f, question), question.translated(question.from, question.backend))
		answer := reply(question.backend, question.from, question.protocol)
		w.passes(t, atEgress, answer.frame(t), answer.translated(question.to, question.from))
		question.to = on(f.balancer().Next(), nodePort+uint16(how.kind)) // of no node
		w.ignores(t, at, how.wrap(t, f, question))
	})
}

// Packets inside other people's tunnels are none of the edge's business, whoever sends them: no byte changes.
func TestOtherTunnels(t *testing.T) {
	w := newDSRScene(t)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		for _, to := range []netip.AddrPort{on(f.local, 80), on(f.remote, targetPort), on(f.client.Next(), 443), on(f.own, 22)} {
			other := question
			other.to = to
			for _, balancer := range []netip.Addr{f.balancer(), f.client, f.pod} {
				other.balancer = balancer
				before := w.counts(t)
				w.ignores(t, at, how.wrap(t, f, other))
				w.counted(t, before, model.NotService)
			}
		}
		w.remembersNothing(t)
	})
}

// A packet that was never encapsulated is not a forgery: one with somebody else's option is handled like any
// packet.
func TestOtherOptions(t *testing.T) {
	w := newDSRScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		for _, to := range []netip.AddrPort{on(f.client.Next(), 443), on(f.own, 22)} {
			question := f.fromBalancer(f.question(protocol, toLocal), on(f.vip, toLocal))
			question.to = to // the destination in the option
			plain := question.carries()
			w.forget(t)
			w.passes(t, at, plain.frame(t), plain.translated(plain.from, on(f.local, targetPort)))
		}
	})
}

// Other people's Geneve: another option or further ones, another network, Ethernet inside, control packets, a
// later version.
func TestOtherGeneve(t *testing.T) {
	w := newDSRScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question := f.fromBalancer(f.question(protocol, toMany+uint16(model.Geneve)), on(f.local, targetPort))
		another := &layers.GeneveOption{Class: 0x102, Type: 0x80, Data: make([]byte, 4)}
		for name, change := range map[string]func(*layers.Geneve){
			"no option":            func(g *layers.Geneve) { g.Options = nil },
			"another class":        func(g *layers.Geneve) { g.Options[0].Class++ },
			"another type":         func(g *layers.Geneve) { g.Options[0].Type = 1 },
			"a longer option":      func(g *layers.Geneve) { g.Options[0].Data = append(g.Options[0].Data, 0, 0, 0, 0) },
			"a shorter option":     func(g *layers.Geneve) { g.Options[0].Data = g.Options[0].Data[:4] },
			"another before":       func(g *layers.Geneve) { g.Options = append([]*layers.GeneveOption{another}, g.Options...) },
			"another behind":       func(g *layers.Geneve) { g.Options = append(g.Options, another) },
			"another network":      func(g *layers.Geneve) { g.VNI = 7 },
			"Ethernet inside":      func(g *layers.Geneve) { g.Protocol = layers.EthernetTypeTransparentEthernetBridging },
			"control":              func(g *layers.Geneve) { g.OAMPacket = true },
			"no critical option":   func(g *layers.Geneve) { g.CriticalOption = false },
			"version 1":            func(g *layers.Geneve) { g.Version = 1 },
			"no port of a backend": func(g *layers.Geneve) { g.Options[0].Data[0], g.Options[0].Data[1] = 0, 0 },
			"the other IP version": func(g *layers.Geneve) { g.Protocol ^= layers.EthernetTypeIPv4 ^ layers.EthernetTypeIPv6 },
		} {
			frame := wrapGeneveLike(t, f, question, change)
			before := w.counts(t)
			w.ignores(t, at, frame)
			if w.counted(t, before, model.NotService); t.Failed() {
				t.Fatal(name)
			}
		}
		w.opens(t, at, wrapGeneve(t, f, question), question.translated(question.from, question.backend))
	})
}

// One outer header is removed, and not another one inside it.
func TestNestedWrappings(t *testing.T) {
	w := newDSRScene(t)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		inside := how.wrap(t, f, question)[14:]
		for _, outside := range []func(testing.TB, family, wrapped) []byte{wrapIPIP, wrapGeneve} {
			twice := question
			twice.inner = inside
			before := w.counts(t)
			w.ignores(t, at, outside(t, f, twice))
			w.counted(t, before, model.NotService)
		}
		w.remembersNothing(t)
	})
}
