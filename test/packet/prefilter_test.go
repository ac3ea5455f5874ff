// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// shutToAll makes the prefilter admit only ServiceCIDRs, whatever frontends there are.
func (w *world) shutToAll(t testing.TB) {
	t.Helper()
	must(t, w.prefilter.Rebuild(func() error { return nil }))
}

// Each reason for the edge to handle a packet has a bit of its own: with that bit alone the packet is handled,
// and without it the prefilter passes it, so nothing else has admitted it.
func TestPrefilterLetsIn(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		defer w.apply(t, w.scene())
		own := f // the Service's address is outside the ServiceCIDRs, which are admitted as a whole
		own.vip = f.behindEth1.Next()
		tables := w.scene()
		for key, frontend := range w.scene().Frontends {
			if key.Address == f.vip {
				key.Address = own.vip
				tables.Frontends[key] = frontend
			}
		}
		w.apply(t, tables)
		for _, c := range []struct {
			asked, admitted uint16
			met             model.Reason
		}{
			{toLocal, toLocal, model.New},
			{toRemote, toRemote, model.New},
			{direct(toRemote, model.IPIP), direct(toRemote, model.IPIP), model.New},
			{dropped, dropped, model.DropPolicy},
			{rejected, rejected, model.Rejected},
			{9999, 0, model.Rejected}, // all other ports of the address
		} {
			key := model.FrontendKey{Address: own.vip, Port: c.admitted, Protocol: protocol}
			question := own.question(protocol, c.asked)
			fromPod := question
			fromPod.from = on(f.pod, clientPort)
			for _, meets := range []func(model.Reason){
				func(reason model.Reason) { w.meets(t, at, 0, question.frame(t), reason) },
				func(reason model.Reason) { w.meets(t, atEgress, w.index["eth1"], fromPod.frame(t), reason) },
			} {
				w.forget(t)
				w.shutToAll(t)
				meets(model.NotService)
				w.prefilter.Add(frontendKey(key))
				meets(c.met)
			}
		}
		w.shutToAll(t)
		unused := f
		unused.vip = f.unused // in a ServiceCIDR
		w.drops(t, at, unused.question(protocol, toRemote).frame(t), model.DropNoService)
		w.drops(t, atEgress, unused.question(protocol, toRemote).frame(t), model.DropNoService)
	})
}

// meets runs a frame, at egress with the device that it arrived at, and checks the counters.
func (w *world) meets(t testing.TB, at hook, from uint32, frame []byte, reason model.Reason) {
	t.Helper()
	before := w.counts(t)
	if at != atEgress {
		w.run(t, at, frame)
	} else if _, err := w.egress.Run(&ebpf.RunOptions{Data: frame, Context: [48]uint32{9: from, 10: w.index["eth0"]}}); err != nil {
		t.Fatal(err)
	}
	w.counted(t, before, reason)
}

// The prefilter admits packets of flows when their entries are created, and after it is rebuilt; the frontend
// may be gone (R30).
func TestPrefilterLetsInFlows(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		tables := w.scene()
		defer w.apply(t, tables)
		toLocalBackend := f.question(protocol, toLocal)
		answer := reply(on(f.local, targetPort), toLocalBackend.from, protocol)
		goesOn := func() {
			t.Helper()
			before := w.counts(t)
			w.passes(t, atEgress, answer.frame(t), answer.translated(toLocalBackend.to, answer.to))
			w.counted(t, before, model.Reply)
		}
		isShut := func(at hook, frame []byte) {
			t.Helper()
			before := w.counts(t)
			w.ignores(t, at, frame)
			w.counted(t, before, model.NotService)
		}
		isShut(atEgress, answer.frame(t))
		w.passes(t, at, toLocalBackend.frame(t), toLocalBackend.translated(toLocalBackend.from, on(f.local, targetPort)))
		goesOn()
		w.empty(t, bpf.EdgeTCMapFrontends)
		w.shut(t)
		goesOn()
		w.shutToAll(t)
		isShut(atEgress, answer.frame(t))

		w.apply(t, tables)
		flow := w.flow(t, at, f, protocol)
		flow.says(t, syn|ack)
		w.empty(t, bpf.EdgeTCMapFrontends)
		w.shut(t)
		flow.says(t, syn|ack)
		flow.asks(t, ack)
		flow.says(t, ack)
		w.shutToAll(t)
		isShut(at, reply(on(f.remote, targetPort), on(f.own, flow.own.DestinationPort), protocol).frame(t))
	})
}

// Leaving packets are counted if nothing has handled them before: those of the node itself, and of pods.
func TestPrefilterCountsWhatLeaves(t *testing.T) {
	w := newScene(t)
	w.enter(t)
	w.shut(t)
	for _, f := range families {
		for _, c := range []struct {
			name string
			from uint32
			p    probe
			want uint64
		}{
			{"the node's", 0, probe{from: on(f.own, 5000), to: on(f.client, 80), protocol: udp}, 1},
			{"a pod's", w.index["eth1"], probe{from: on(f.local, 5000), to: on(f.client, 80), protocol: udp}, 1},
			{"forwarded", w.index["eth1"], probe{from: on(f.client, 5000), to: on(f.client.Next(), 80), protocol: udp}, 0},
		} {
			for _, how := range []string{"shut", "open", "without pod networks"} {
				t.Run(fmt.Sprint(f.name, "/", c.name, "/", how), func(t *testing.T) {
					w.enter(t)
					defer w.apply(t, w.scene())
					switch how {
					case "open":
						w.prefilter.Disable()
					case "without pod networks":
						w.prefilter.LookUpPods()
					}
					before := w.counts(t)[model.NotService]
					options := ebpf.RunOptions{Data: c.p.frame(t), Context: [48]uint32{9: c.from, 10: w.index["eth0"]}}
					if _, err := w.egress.Run(&options); err != nil {
						t.Fatal(err)
					}
					if n := w.counts(t)[model.NotService] - before; n != c.want {
						t.Errorf("counted %d times, want %d", n, c.want)
					}
				})
			}
		}
	}
}
