// SPDX-License-Identifier: Apache-2.0

package twin

import "testing"

// A handful of frames between pods of one node and of two, and with a client outside, in both families, arrives as by
// the stack: cold, and a moment after a frame of the same flow.
func TestFrames(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			inTime(t, ofFrames)
			w := newWorld(t, l)
			before := w.shortcut()
			var found []Difference
			for range 3 {
				found = append(found, w.differences(w.plainFrames(), 0)...)
			}
			w.judge(plain, found)
			if after := w.shortcut(); after < before+uint64(w.tally.frames)/3 {
				t.Errorf("of %d frames %d took the shortcut: the test proves nothing", w.tally.frames, after-before)
			}
			w.report()
		})
	}
}

// shortcut is how many packets have taken the shortcut.
func (w *world) shortcut() uint64 {
	w.t.Helper()
	s, err := w.sides[0].agent.Status()
	w.must(err)
	return w.layout.took(s)
}
