// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// A device may receive frames for others, behind a bridge or a mirror: they are not the node's, whatever they
// ask for, and leave no state.
func TestFramesForOthers(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		flow := w.flow(t, at, f, protocol)
		records := len(w.records(t, halfOpen))
		about := flow.question.translated(on(f.own, flow.own.DestinationPort), on(f.remote, targetPort))
		for _, target := range [][6]byte{nodeCMAC, {2, 0, 0, 0, 1, 1}, {3, 0, 0, 0, 1, 0}, {1, 0, 0x5e, 0, 0, 1}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}} {
			ignored := func(frame []byte) {
				t.Helper()
				copy(frame, target[:])
				before := w.counts(t)
				w.ignores(t, at, frame)
				w.counted(t, before, model.NotService)
			}
			for _, port := range []uint16{toRemote, toLocal, rejected, dropped, noBackends} {
				question := f.question(protocol, port)
				ignored(question.frame(t))
				question.payload = make([]byte, 64)
				ignored(question.fragments(t, 5, 40)[0])
			}
			ignored(reply(on(f.remote, targetPort), on(f.own, flow.own.DestinationPort), protocol).frame(t))
			ignored(errorsOf(f, about)[0].frame(t, probe{}, f.remote, f.own))
		}
		if n := len(w.records(t, halfOpen)); n != records || len(w.fragments(t)) > 0 {
			t.Errorf("%d conntrack entries, want %d as before; fragments %v", n, records, w.fragments(t))
		}
	})
}

// A source that no packet on a network can have is forged: no flow begins, nothing is answered, and the stack,
// which knows such sources, drops the packet (RFC 1122 section 3.2.1.3).
func TestImpossibleSources(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		sources := []string{"127.0.0.1", "127.255.255.254", "0.0.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"}
		if f.client.Is6() {
			sources = []string{"::1", "::", "ff02::1", "ffff::1"}
		}
		for _, source := range sources {
			for _, port := range []uint16{toRemote, toLocal, rejected} {
				question := f.question(protocol, port)
				question.from = on(netip.MustParseAddr(source), clientPort)
				before := w.counts(t)
				w.ignores(t, at, question.frame(t))
				w.counted(t, before, model.Malformed)
			}
		}
		if n := len(w.records(t, halfOpen)) + len(w.records(t, tracks)); n > 0 {
			t.Errorf("%d conntrack entries", n)
		}
	})
}

// XDP serves no device whose address it does not know. tc does, since the kernel tells it for whom a frame is.
func TestDeviceUnknownToXDP(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		defer w.apply(t, w.scene())
		w.empty(t, bpf.EdgeTCMapEdgeDevices)
		question := f.question(protocol, toLocal)
		if at == atXDP {
			w.ignores(t, at, question.frame(t))
			return
		}
		w.passes(t, at, question.frame(t), question.translated(question.from, on(f.local, targetPort)))
	})
}
