// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"slices"
	"testing"
)

// Each kind of frames arrives as by the stack: as the first frame of its flow, and when the shortcut remembers its
// decision about a plain frame of the flow. With -short in one layout.
func TestKinds(t *testing.T) {
	for i, l := range layouts {
		if testing.Short() && i > 0 {
			break
		}
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			wantNamed(t)
			inTime(t, ofKinds)
			w := newWorld(t, l)
			for _, k := range kindsOf(l) {
				if *only == "" || *only == k.name {
					t.Run(k.name, func(t *testing.T) { w.in(t).wantKind(k) })
				}
			}
			w.report()
		})
	}
}

func (w *world) wantKind(k kind) {
	w.t.Helper()
	inTime(w.t, ofKinds)
	odd, plain := w.of(k)
	found := w.differences(odd, 0)
	for i := range odd {
		for _, d := range w.compare([]Frame{plain[i], odd[i]}, late) {
			if !slices.ContainsFunc(found, func(f Difference) bool { return f.Frame.String() == d.Frame.String() }) {
				found = append(found, d)
			}
		}
	}
	w.judge(k.name, found)
}
