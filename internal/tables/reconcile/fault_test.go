// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// TestConvergesUnderFaults: one operation in ten fails, and so do all for the index entry of one frontend.
// That frontend keeps its state and reports the failure; all others are applied.
func TestConvergesUnderFaults(t *testing.T) {
	r := newRand(t)
	for range 20 {
		k := smallKernel(t)
		s := newSyncer(t, k)
		stuck := service.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: service.TCP}
		broken := fmt.Sprintf("put %s %v", bpf.SockMapFrontends, codec.FrontendKey(stuck))
		removal := fmt.Sprintf("delete %s %v", bpf.SockMapFrontends, codec.FrontendKey(stuck))
		k.before = func(operation string) error {
			if operation == broken || operation == removal || r.IntN(10) == 0 {
				return fmt.Errorf("%s: %w", operation, errFault)
			}
			return nil
		}
		plans := map[service.Ref]*service.Plan{}
		for range 20 {
			next := randomPlans(r, 6)
			s.Apply(difference(plans, next))
			plans = next
			s.CollectGarbage()
		}
		now := time.Now()
		for range 600 { // a table is many operations
			now = now.Add(time.Minute)
			s.Retry(now)
			s.CollectGarbage()
		}
		want, got := stateOf(plans), k.state()
		_, planned := want[stuck]
		delete(want, stuck)
		delete(got, stuck)
		if all := differences(want, got); all != "" {
			t.Fatalf("writes to the tables have failed now and then; after 600 retries:\n%s", all)
		}
		for _, st := range s.Status() {
			failed := planned && st.Owner == ref("s0")
			if (st.State == Failed) != failed || (failed && !strings.Contains(st.Reasons[0], stuck.String())) {
				t.Fatalf("the row of %s of Service default/s0 cannot be written, and is planned: %t; the status of %s is %s %q", stuck, planned, st.Owner, st.State, st.Reasons)
			}
		}
	}
}

// TestFullTableNamesTheFlag: what does not fit is refused with the name of the flag, the previous state
// stays in effect, and the change is applied as soon as there is room.
func TestFullTableNamesTheFlag(t *testing.T) {
	for _, test := range []struct {
		limits bpf.Limits
		flag   string
	}{
		{bpf.Limits{Frontends: 2}, "--max-frontends"},
		{bpf.Limits{Backends: 4}, "--max-backends"},
		{bpf.Limits{Slots: 6}, "--max-slots"},
		{bpf.Limits{Services: 2}, "--max-services"},
	} {
		t.Run(test.flag, func(t *testing.T) {
			k := newFakeKernel(t, test.limits)
			s := newSyncer(t, k)
			plans := simplePlans(2, 2)
			mustApply(t, s, difference(nil, plans))
			more := simplePlans(3, 2)
			err := s.Apply(difference(plans, more))
			if err == nil || !strings.Contains(err.Error(), test.flag) {
				t.Errorf("3 Services of 2 backends each do not fit into the limits %+v: the error is %v, want one that names %s", test.limits, err, test.flag)
			}
			k.mustHold(t, plans, "after the change that does not fit")
			// One Service is removed and another added in one delta: there is room for it.
			delete(more, ref("s0"))
			if err := s.Apply(service.Delta{Plans: map[service.Ref]*service.Plan{ref("s0"): nil}}); err != nil {
				t.Log(err)
			}
			mustConverge(t, s)
			k.mustHold(t, more, "with room")
		})
	}
}

// mustConverge retries until nothing is pending.
func mustConverge(t *testing.T, s *Syncer) {
	t.Helper()
	for now := time.Now(); ; {
		next, _ := s.Retry(now)
		if next.IsZero() {
			return
		}
		if now = next; now.After(time.Now().Add(time.Hour)) {
			t.Fatalf("never converges: %+v", s.Status())
		}
	}
}

// TestIDRestsWhileAffinityNamesIt (R27): a client that was bound to a removed backend never reaches another
// one with the same id.
func TestIDRestsWhileAffinityNamesIt(t *testing.T) {
	k := newFakeKernel(t, bpf.Limits{Backends: 1})
	s := newSyncer(t, k)
	owner := ref("sticky")
	one := map[service.Ref]*service.Plan{owner: simplePlan(owner, 0, 1)}
	mustApply(t, s, difference(nil, one))
	services, backends := k.ids()
	client := bpf.AffinityKey{Service: services[service.Port{Owner: owner, Protocol: service.TCP}]}
	k.affinity.entries[client] = bpf.AffinityEntry{Backend: backends["10.10.0.1:8080 6 0 10.10.0.1"]}

	other := map[service.Ref]*service.Plan{owner: simplePlan(owner, 1, 1)}
	k.before = func(operation string) error {
		if strings.HasPrefix(operation, "delete "+bpf.SockMapAffinity) {
			return errFault
		}
		return nil
	}
	mustApply(t, s, difference(one, nil))
	if err := s.Apply(difference(nil, other)); err == nil {
		t.Error("the id was used again while an affinity entry named it")
	}
	// The next agent does not reuse it, either.
	s = newSyncer(t, k)
	if err := s.Apply(difference(nil, other)); err == nil {
		t.Error("after a restart the id was used again while an affinity entry named it")
	}
	k.before = nil
	s.CollectGarbage()
	if _, err := s.Retry(time.Now().Add(time.Minute)); err != nil {
		t.Errorf("with the entry gone the id is free: %v", err)
	}
	if len(k.affinity.entries) != 0 {
		t.Errorf("affinity entries left: %v", k.affinity.entries)
	}
}

// TestAffinityOfRemovedBackend (R27): the Service stays, and one of its backends is removed: affinity to that ends when
// the id is freed, and affinity to the other stays.
func TestAffinityOfRemovedBackend(t *testing.T) {
	k := newFakeKernel(t, bpf.Limits{Backends: 8})
	s := newSyncer(t, k)
	owner := ref("sticky")
	two := map[service.Ref]*service.Plan{owner: simplePlan(owner, 0, 2)}
	one := map[service.Ref]*service.Plan{owner: simplePlan(owner, 0, 1)}
	mustApply(t, s, difference(nil, two))
	services, backends := k.ids()
	id := services[service.Port{Owner: owner, Protocol: service.TCP}]
	stays := bpf.AffinityKey{Service: id, Client: bpf.SockAddress{Bytes: [16]byte{1}}}
	leaves := bpf.AffinityKey{Service: id, Client: bpf.SockAddress{Bytes: [16]byte{2}}}
	k.affinity.entries[stays] = bpf.AffinityEntry{Key: stays, Backend: backends["10.10.0.1:8080 6 0 10.10.0.1"]}
	k.affinity.entries[leaves] = bpf.AffinityEntry{Key: leaves, Backend: backends["10.10.0.2:8080 6 0 10.10.0.2"]}
	mustApply(t, s, difference(two, one))
	mustCollect(t, s)
	if _, ok := k.affinity.entries[leaves]; ok {
		t.Error("a client has affinity to a backend that was removed, and would get the next one with its id")
	}
	if _, ok := k.affinity.entries[stays]; !ok {
		t.Error("a client has lost its affinity to a backend that serves")
	}
}
