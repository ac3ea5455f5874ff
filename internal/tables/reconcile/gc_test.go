// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"testing"

	"beeline.io/beeline/internal/cluster/service"
)

// Changes made while CollectGarbage waits for programs do not wait with it. What they replace is reused
// only after the next grace period, which the fake kernel checks, and in the end everything is freed.
func TestChangesDuringGracePeriods(t *testing.T) {
	r := newRand(t)
	for range 50 {
		k := smallKernel(t)
		var during func()
		k.tables.WaitForReaders = func() error {
			k.reading = nil // what becomes reachable from here on may still be read at the end
			if f := during; f != nil {
				during = nil
				f()
			}
			return nil
		}
		s := newSyncer(t, k)
		plans := map[service.Ref]*service.Plan{}
		change := func() {
			next := randomPlans(r, 5)
			mustApply(t, s, difference(plans, next))
			plans = next
		}
		for range 20 {
			change()
			retired := len(s.frontends.deferred)
			during = change
			if _, err := s.CollectGarbage(); err != nil {
				t.Fatal(err)
			}
			if during != nil && retired > 0 {
				t.Error("CollectGarbage did not wait for programs")
			}
			during = nil
		}
		mustApply(t, s, difference(plans, nil))
		mustCollect(t, s)
		if used := s.alloc.slots.used(); used != 0 || len(k.index.entries)+len(k.services.entries) != 0 {
			t.Fatalf("not freed: %d slots, %v, %v", used, k.index.entries, k.services.entries)
		}
	}
}
