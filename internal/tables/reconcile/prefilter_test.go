// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"beeline.io/beeline/internal/cluster/service"
)

// Packets to a frontend pass the prefilter before the frontend is in the tables (the fake kernel checks
// each), and after each rebuild for as long as it exists; an audit finds what another program has cleared.
func TestPrefilter(t *testing.T) {
	k := smallKernel(t)
	empty := func() {
		t.Helper()
		if err := k.tables.Prefilter.Rebuild(func() error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(k.tables)
	if err != nil {
		t.Fatal(err)
	}
	r := newRand(t)
	change := func() {
		delta := service.Delta{Plans: map[service.Ref]*service.Plan{}}
		for number := range 6 {
			if owner := ref(fmt.Sprint("s", number)); r.IntN(2) == 0 {
				delta.Plans[owner] = nil
			} else {
				delta.Plans[owner] = randomPlan(r, owner, number)
			}
		}
		s.Apply(delta) // some may find no room
	}
	for range 50 {
		if err := k.tables.Prefilter.Rebuild(func() error { change(); s.fillPrefilter(); change(); return nil }); err != nil {
			t.Fatal(err)
		}
		for key := range k.index.entries {
			if !k.tables.Prefilter.Contains(key) {
				t.Fatalf("the prefilter does not pass packets to %v, which is in the index of frontends: programs would leave them to the stack", key)
			}
		}
		change()
	}
	for len(k.index.entries) == 0 { // once in 64 times all Services have just been removed
		change()
	}
	if repairs, err := s.Audit(); repairs != 0 || err != nil {
		t.Fatalf("an audit repaired %d differences: %v", repairs, err)
	}
	empty()
	if repairs, err := s.Audit(); repairs != len(k.index.entries) || err != nil {
		t.Errorf("an audit repaired %d differences, want %d: %v", repairs, len(k.index.entries), err)
	}
	empty()
	if _, err := New(k.tables); err != nil {
		t.Fatal(err)
	}
	for key := range k.index.entries {
		if !k.tables.Prefilter.Contains(key) {
			t.Fatalf("a new agent does not pass packets to %v, which an agent without prefilter may have published", key)
		}
	}
}

// Packets to a ServiceCIDR pass before it is in the tables: the prefilter is disabled until it is rebuilt.
func TestPrefilterServiceCIDRs(t *testing.T) {
	k := smallKernel(t)
	s, err := New(k.tables)
	if err != nil {
		t.Fatal(err)
	}
	opened := true
	k.before = func(operation string) error {
		if len(operation) > 12 && operation[:12] == "put networks" {
			opened = opened && !k.tables.Prefilter.Enabled()
		}
		return nil
	}
	for _, cidrs := range [][]netip.Prefix{
		{netip.MustParsePrefix("10.96.0.0/12")},
		{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:96::/112")},
	} {
		if err := s.Apply(service.Delta{ServiceCIDRs: &cidrs}); err != nil {
			t.Fatal(err)
		}
		if !opened {
			t.Fatalf("%v: a ServiceCIDR was published while the prefilter was enabled", cidrs)
		}
		if err := k.tables.Prefilter.Rebuild(func() error { s.fillPrefilter(); return nil }); err != nil || !k.tables.Prefilter.Enabled() {
			t.Fatalf("%v: the prefilter is disabled: %v", cidrs, err)
		}
		if err := s.Apply(service.Delta{}); err != nil || !k.tables.Prefilter.Enabled() {
			t.Fatalf("%v: nothing has changed, and the prefilter is disabled: %v", cidrs, err)
		}
	}
}

// While pod networks or ServiceCIDRs change, the programs look them up in the table. When everything that
// is wanted has been written they need not; after a failure they still must.
func TestPrefilterPods(t *testing.T) {
	k := smallKernel(t)
	s, err := New(k.tables)
	if err != nil {
		t.Fatal(err)
	}
	looked, changes, fail := true, 0, false
	k.before = func(operation string) error {
		if strings.HasPrefix(operation, "put networks") || strings.HasPrefix(operation, "delete networks") {
			looked = looked && !k.tables.Prefilter.PodsComplete()
			changes++
			if fail {
				return errFault
			}
		}
		return nil
	}
	for _, c := range []struct {
		pods  []string
		fail  bool
		whole bool
	}{
		{[]string{"10.10.1.0/24", "fd00:10::/64"}, false, true},
		{[]string{"10.10.3.0/24"}, false, true},
		{[]string{"10.10.3.0/24", "10.10.5.0/24"}, true, true}, // includes the old ones
		{[]string{"10.10.3.0/24", "10.10.5.0/24"}, false, true},
		{[]string{"10.96.0.0/24"}, false, false},
		{nil, false, true},
	} {
		fail = c.fail
		before := changes
		err := s.Apply(service.Delta{ServiceCIDRs: networksOf("10.96.0.0/16"), PodNetworks: networksOf(c.pods...)})
		if (err != nil) != c.fail || changes == before || !looked || k.tables.Prefilter.PodsComplete() != c.whole {
			t.Errorf("%v: %v, %d changes, the table decided meanwhile: %v, networks are complete: %v", c.pods, err, changes-before, looked, k.tables.Prefilter.PodsComplete())
		}
	}
}
