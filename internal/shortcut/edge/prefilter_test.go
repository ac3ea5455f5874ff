// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"testing"
)

// The prefilter may be rebuilt while this agent's programs are attached to all devices: not before the edge
// starts, and not while a device may still have the programs of an earlier agent, whose entries no walk
// sees.
func TestPrefilterNeedsThisAgentsPrograms(t *testing.T) {
	w := newWorld(t, Config{Mode: TC}, hardware)
	want := func(when string, want bool) {
		t.Helper()
		if got := w.kernel.prefilter.BeginRebuild() != nil; got != want {
			t.Fatalf("%s: the prefilter may be rebuilt: %v, want %v", when, got, want)
		}
	}
	want("before the start", false)
	w.kernel.tcError = errors.New("planted")
	w.Start()
	want("a device cannot be attached to", false)
	w.kernel.tcError = nil
	w.rescan()
	want("all devices are attached to", true)
}
