// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"testing"

	"beeline.io/beeline/test/packet/model"
)

// FuzzEdge runs arbitrary bytes at all three hooks and compares with the model: a packet that neither belongs
// to a flow nor begins one passes unchanged, and a damaged one leaves no state. Each is run again with a right checksum
// of its IPv4 header. Run it with -parallel=1, or each worker creates a node of its own.
func FuzzEdge(f *testing.F) {
	for _, who := range families {
		for _, protocol := range []uint8{tcp, udp} {
			for _, port := range []uint16{toRemote, toLocal, toEth1, rejected, dropped, ranged, 9999,
				direct(toRemote, model.IPIP), direct(toRemote, model.Geneve), direct(toRemote, model.Opt)} {
				p := who.question(protocol, port)
				f.Add(p.frame(f))
				p.payload = make([]byte, 64)
				for _, part := range p.fragments(f, 1, 40) {
					f.Add(part)
				}
			}
			f.Add(reply(on(who.local, targetPort), on(who.client, clientPort), protocol).frame(f))
		}
	}
	for _, who := range families {
		for _, port := range []uint16{sctpRemote, sctpLocal, sctpOther, rejected, 9999} {
			p := who.association(port)
			f.Add(p.frame(f))
			p.payload = make([]byte, 64)
			for _, part := range p.fragments(f, 2, 40) {
				f.Add(part)
			}
		}
		f.Add(who.ping("abcdefgh").frame(f))
		f.Add(who.ping("abcdefgh").reply().frame(f))
	}
	for _, who := range families {
		for _, protocol := range []uint8{tcp, udp} {
			for _, how := range wrappings {
				wrapped := who.fromBalancer(who.question(protocol, toLocal), on(who.local, targetPort))
				f.Add(how.wrap(f, who, wrapped))
				wrapped.balancer = who.client
				f.Add(how.wrap(f, who, wrapped))
			}
		}
	}
	w := newWorld(f, limits{})
	scene := w.scene()
	for _, who := range families {
		scene.Balancers = append(scene.Balancers, netip.PrefixFrom(who.balancer(), who.balancer().BitLen()))
		for _, protocol := range []uint8{tcp, udp} {
			key := model.FrontendKey{Address: who.vip, Port: toLocal, Protocol: protocol}
			frontend := scene.Frontends[key]
			frontend.DSR = model.Opt
			scene.Frontends[key] = frontend
		}
	}
	w.apply(f, scene)
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < 14+40 || len(frame) > 1500 {
			return // tc's test runs refuse less; more needs jumbo frames
		}
		w.enter(t)
		for n, at := range []hook{atXDP, atIngress, atEgress, atXDP, atIngress, atEgress} {
			if n == 3 {
				frame = repair(bytes.Clone(frame), 14)
			}
			w.forget(t)
			second, _ := now(t)
			edge := &model.Edge{Tables: *scene, Now: second}
			edge.Forget()
			var want model.Result
			if at == atEgress {
				want = edge.Egress(w.index["eth0"], frame)
			} else {
				want = edge.Ingress(at == atXDP, w.index["eth0"], frame)
			}
			got := w.run(t, at, frame)
			if !w.met(at, got, want) || w.counts(t) != edge.Counts {
				t.Fatalf("at %s, for\n%sthe program returned %v\n%sthe model %v\n%scounts: program %v\n         model %v", at,
					hex.Dump(frame), got.Action, hex.Dump(got.Frame), want.Action, hex.Dump(want.Frame), w.counts(t), edge.Counts)
			}
		}
	})
}
