// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"testing"

	"beeline.io/beeline/test/packet/model"
)

// With DSR a remote backend gets the client's packet, encapsulated (R19), with the same bytes as another
// encoder writes. No state is kept for replies.
func TestDirect(t *testing.T) {
	w := newScene(t)
	w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
		question, way := f.question(protocol, direct(toRemote, dsr)), f.way(dsr)
		question.class = 0xb9 // expedited forwarding, ECT(1)
		for _, hops := range []uint8{64, 255, 2} {
			question.hops = hops
			w.leaves(t, at, question.frame(t), model.ActionSend, way.sent(t, at, question, nodeBMAC))
		}
		question.flags, question.payload = psh|ack, bytes.Repeat([]byte("odd"), 301)
		w.leaves(t, at, question.frame(t), model.ActionSend, way.sent(t, at, question, nodeBMAC))
		want := [model.Reasons]uint64{model.New: 1, model.Established: 3}
		if got := w.counts(t); got != want {
			t.Errorf("counted %v, want %v", got, want)
		}
		if n := len(w.records(t, tracks)) + len(w.records(t, halfOpen)); n != 1 {
			t.Errorf("%d conntrack entries, want only the client's", n)
		}
	})
}
