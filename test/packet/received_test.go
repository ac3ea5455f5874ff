// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"testing"

	"beeline.io/beeline/test/needs"
	"beeline.io/beeline/test/packet/model"
)

// A device may have computed a packet's sum (CHECKSUM_COMPLETE): it stays correct through every rewrite, or the
// stack would drop the packet.
func TestChecksumMadeByDevice(t *testing.T) {
	w := newScene(t)
	needs.Kernel(t, needs.SummedTestRuns)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		if at != atIngress {
			return // XDP has no such sum
		}
		sum := func(at hook, frame []byte, action model.Action) {
			t.Helper()
			if got := w.runWith(t, at, frame, bpfTestChecksumComplete, 0); got.Action != action {
				t.Errorf("action %v, want %v", got.Action, action)
			}
		}
		local, remote := f.question(protocol, toLocal), f.question(protocol, toRemote)
		local.payload, remote.payload = make([]byte, 75), make([]byte, 99)
		own := on(f.own, w.snatPort(t, at, remote.frame(t)))
		answer := reply(on(f.remote, targetPort), own, protocol)
		for _, p := range []probe{remote, answer} {
			sum(at, p.frame(t), model.ActionSend)
			for _, part := range p.fragments(t, 9, 32) {
				sum(at, part, model.ActionSend)
			}
		}
		sum(at, local.frame(t), model.ActionPass)
		for _, part := range local.fragments(t, 10, 24) {
			sum(at, part, model.ActionPass)
		}
		back := reply(on(f.local, targetPort), local.from, protocol)
		sum(atEgress, back.frame(t), model.ActionPass)
		for _, e := range errorsOf(f, back.translated(local.to, local.from)) {
			sum(at, e.frame(t, probe{}, f.client, f.vip), model.ActionPass)
		}
		for _, e := range errorsOf(f, remote.translated(own, answer.from)) {
			sum(at, e.frame(t, probe{}, f.remote, f.own), model.ActionSend)
		}
	})
}
