// SPDX-License-Identifier: Apache-2.0

package sync

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
	"github.com/google/go-cmp/cmp"
)

var compare = cmp.AllowUnexported(behaviour{})

func newSyncer(t *testing.T, k *fakeKernel) *Syncer {
	t.Helper()
	s, err := New(k.tables)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustApply(t *testing.T, s *Syncer, d service.Delta) {
	t.Helper()
	if err := s.Apply(d); err != nil {
		t.Fatalf("apply: %v", err)
	}
}

func mustCollect(t *testing.T, s *Syncer) {
	t.Helper()
	if left, err := s.Collect(); left || err != nil {
		t.Fatalf("collect: left %v, %v", left, err)
	}
}

// ids are the numbers that must not change while what they name lives.
func (k *fakeKernel) ids() (services map[service.Port]uint32, backends map[string]uint32) {
	services, backends = map[service.Port]uint32{}, map[string]uint32{}
	for id, name := range k.services.entries {
		services[PortOf(name)] = id
	}
	for key := range k.index.entries {
		for _, u := range k.reachable(key) {
			if u.table == k.backends.name {
				row := k.backends.rows[u.number]
				backends[fmt.Sprint(row.AddrPort(), row.Protocol, row.Local)] = u.number
			}
		}
	}
	return services, backends
}

// TestTablesHoldThePlan: whatever sequence of plans, the programs meet just
// what the last one says, and at the end nothing is left behind.
func TestTablesHoldThePlan(t *testing.T) {
	r := newRand(t)
	for range 50 {
		k := newFakeKernel(t, datapath.Limits{Frontends: 64, Slots: 400, Backends: 64})
		s := newSyncer(t, k)
		plans := map[service.Ref]*service.Plan{}
		for range 10 {
			next := randomPlans(r, 6)
			mustApply(t, s, difference(plans, next))
			plans = next
			if diff := cmp.Diff(stateOf(plans), k.state(), compare); diff != "" {
				t.Fatalf("planned (-) and met (+):\n%s", diff)
			}
			k.mustReserve(t)
			if r.IntN(2) == 0 {
				mustCollect(t, s)
				k.mustReserveOnly(t)
			}
			if r.IntN(3) == 0 {
				s = newSyncer(t, k)
				mustApply(t, s, difference(nil, plans))
			}
		}
		mustApply(t, s, difference(plans, nil))
		mustCollect(t, s)
		if len(k.index.entries)+len(k.services.entries)+len(k.ranges.entries)+len(k.reserved.entries) != 0 {
			t.Fatalf("left behind: %v %v %v %v", k.index.entries, k.services.entries, k.ranges.entries, k.reserved.entries)
		}
		for id, b := range k.backends.rows {
			if b != (datapath.Backend{}) {
				t.Fatalf("backend %d left behind: %v", id, b)
			}
		}
		if used := s.slots.used(k.slots.Len()); used != 0 || len(s.slots.free) != 1 {
			t.Fatalf("%d slots are not free; %v", used, s.slots.free)
		}
	}
}

// TestKilledAfterEachOperation stops the agent after every single operation of
// an update in turn. At that moment, as after each operation before, every
// frontend is as before or as it should be, for all classes of clients at
// once. The next agent finishes the work, and no id has changed.
func TestKilledAfterEachOperation(t *testing.T) {
	r := newRand(t)
	killed := errors.New("the agent is dead")
	stops := 0
	for range 25 {
		before, after := randomPlans(r, 5), randomPlans(r, 5)
		oldState, newState := stateOf(before), stateOf(after)
		for stop, done := 0, false; !done; stop++ {
			k := newFakeKernel(t, datapath.Limits{Frontends: 64, Slots: 400, Backends: 64})
			s := newSyncer(t, k)
			mustApply(t, s, difference(nil, before))
			mustCollect(t, s)
			services, backends := k.ids()

			operations := 0
			k.before = func(string) error {
				if operations++; operations > stop {
					return killed
				}
				return nil
			}
			k.after = func() {
				oldOrNew(t, k, oldState, newState)
				k.mustReserve(t)
			}
			err := s.Apply(difference(before, after))
			if err == nil {
				_, err = s.Collect()
			}
			done = err == nil
			if t.Failed() {
				t.Fatalf("after operation %d", stop)
			}
			k.before, k.after = nil, nil
			k.reading = nil // the dead agent's last grace period is long over
			stops++

			s = newSyncer(t, k)
			mustApply(t, s, difference(nil, after))
			mustCollect(t, s)
			if diff := cmp.Diff(newState, k.state(), compare); diff != "" {
				t.Fatalf("killed after operation %d; planned (-) and met (+):\n%s", stop, diff)
			}
			sameIDs(t, k, services, backends)
			k.mustReserveOnly(t)
			if n, err := s.Audit(); n != 0 || err != nil {
				t.Fatalf("audit: %d repairs, %v", n, err)
			}
		}
	}
	t.Logf("killed at %d places", stops)
}

func oldOrNew(t *testing.T, k *fakeKernel, before, after state) {
	t.Helper()
	keys := maps.Clone(before)
	maps.Copy(keys, after)
	for key := range keys {
		got, ok := k.meets(key)
		was, wasThere := before[key]
		will, willBe := after[key]
		if (ok == wasThere && got == was) || (ok == willBe && got == will) {
			continue
		}
		t.Errorf("%s is neither old nor new:\nold %v %v\nnew %v %v\ngot %v %v", key, wasThere, was, willBe, will, ok, got)
	}
}

// sameIDs: what lived before and lives now has its id still.
func sameIDs(t *testing.T, k *fakeKernel, services map[service.Port]uint32, backends map[string]uint32) {
	t.Helper()
	nowServices, nowBackends := k.ids()
	for port, id := range nowServices {
		if was, ok := services[port]; ok && was != id {
			t.Fatalf("%s had id %d and has %d", port, was, id)
		}
	}
	for name, id := range nowBackends {
		if was, ok := backends[name]; ok && was != id {
			t.Fatalf("backend %s had id %d and has %d", name, was, id)
		}
	}
}

// TestConvergesUnderFaults: one operation in ten fails, and all that touch one
// frontend's index entry. That one keeps what it had and says so, everything
// else arrives.
func TestConvergesUnderFaults(t *testing.T) {
	r := newRand(t)
	for range 20 {
		k := newFakeKernel(t, datapath.Limits{Frontends: 64, Slots: 400, Backends: 64})
		s := newSyncer(t, k)
		stuck := service.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: service.TCP}
		broken := fmt.Sprintf("put %s %v", datapath.SockMapFrontends, tableKey(stuck))
		removal := fmt.Sprintf("delete %s %v", datapath.SockMapFrontends, tableKey(stuck))
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
			s.Collect()
		}
		now := time.Now()
		for range 60 {
			now = now.Add(time.Minute)
			s.Retry(now)
			s.Collect()
		}
		want, got := stateOf(plans), k.state()
		_, planned := want[stuck]
		delete(want, stuck)
		delete(got, stuck)
		if diff := cmp.Diff(want, got, compare); diff != "" {
			t.Fatalf("planned (-) and met (+):\n%s", diff)
		}
		for _, st := range s.Status() {
			failed := planned && st.Owner == ref("s0")
			if (st.State == Failed) != failed || (failed && !strings.Contains(st.Reasons[0], stuck.String())) {
				t.Fatalf("status %+v; the broken frontend is planned: %v", st, planned)
			}
		}
	}
}

// TestFullTableNamesTheFlag: what does not fit is refused by name, what was
// there stays, and it arrives as soon as there is room.
func TestFullTableNamesTheFlag(t *testing.T) {
	for _, test := range []struct {
		limits datapath.Limits
		flag   string
	}{
		{datapath.Limits{Frontends: 2}, "--max-frontends"},
		{datapath.Limits{Backends: 4}, "--max-backends"},
		{datapath.Limits{Slots: 5}, "--max-slots"},
		{datapath.Limits{Services: 2}, "--max-services"},
	} {
		k := newFakeKernel(t, test.limits)
		s := newSyncer(t, k)
		plans := map[service.Ref]*service.Plan{}
		for i := range 2 {
			plans[ref(fmt.Sprint("s", i))] = simplePlan(ref(fmt.Sprint("s", i)), i, 2)
		}
		mustApply(t, s, difference(nil, plans))
		more := maps.Clone(plans)
		more[ref("s2")] = simplePlan(ref("s2"), 2, 2)
		err := s.Apply(difference(plans, more))
		if err == nil || !strings.Contains(err.Error(), test.flag) {
			t.Errorf("%s: the error is %v", test.flag, err)
		}
		if diff := cmp.Diff(stateOf(plans), k.state(), compare); diff != "" {
			t.Errorf("%s: planned (-) and met (+):\n%s", test.flag, diff)
		}
		// One goes, another comes, in one delta: there is room for it.
		delete(more, ref("s0"))
		if err := s.Apply(service.Delta{Plans: map[service.Ref]*service.Plan{ref("s0"): nil}}); err != nil {
			t.Logf("%s: %v", test.flag, err)
		}
		for now := time.Now(); ; {
			next, _ := s.Retry(now)
			if next.IsZero() {
				break
			}
			now = next
			if now.After(time.Now().Add(time.Hour)) {
				t.Fatalf("%s: never converges: %+v", test.flag, s.Status())
			}
		}
		if diff := cmp.Diff(stateOf(more), k.state(), compare); diff != "" {
			t.Errorf("%s: planned (-) and met (+):\n%s", test.flag, diff)
		}
	}
}

// simplePlan is a ClusterIP over some backends of its own.
func simplePlan(owner service.Ref, number, backends int) *service.Plan {
	port := service.Port{Owner: owner, Protocol: service.TCP}
	set := service.BackendSet{Key: service.SetKey{Port: port, Family: service.IPv4}}
	for i := range backends {
		addr := netip.AddrFrom4([4]byte{10, 10, byte(number), byte(i + 1)})
		set.Backends = append(set.Backends, service.Backend{Addr: netip.AddrPortFrom(addr, 8080), Weight: 1})
	}
	f := service.Frontend{
		Key:  service.FrontendKey{Addr: netip.AddrFrom4([4]byte{10, 96, byte(number), 1}), Port: 80, Protocol: service.TCP},
		Kind: service.ClusterIP,
		Port: port,
	}
	for class := range f.Decisions {
		f.Decisions[class] = service.Decision{Verdict: service.Balance, Set: set.Key}
	}
	return &service.Plan{Frontends: []service.Frontend{f}, Sets: []service.BackendSet{set}}
}

// TestIDRestsWhileAffinityNamesIt (R27): a client that was bound to a backend
// which is gone never finds another under the same id.
func TestIDRestsWhileAffinityNamesIt(t *testing.T) {
	k := newFakeKernel(t, datapath.Limits{Backends: 1})
	s := newSyncer(t, k)
	owner := ref("sticky")
	one := map[service.Ref]*service.Plan{owner: simplePlan(owner, 0, 1)}
	mustApply(t, s, difference(nil, one))
	services, backends := k.ids()
	client := datapath.AffinityKey{Service: services[service.Port{Owner: owner, Protocol: service.TCP}]}
	k.affinity.entries[client] = datapath.AffinityEntry{Backend: backends["10.10.0.1:8080 6 0"]}

	other := map[service.Ref]*service.Plan{owner: simplePlan(owner, 1, 1)}
	k.before = func(operation string) error {
		if strings.HasPrefix(operation, "delete "+datapath.SockMapAffinity) {
			return errFault
		}
		return nil
	}
	mustApply(t, s, difference(one, nil))
	if err := s.Apply(difference(nil, other)); err == nil {
		t.Error("the id was used again while an affinity entry named it")
	}
	// The next agent knows that too.
	s = newSyncer(t, k)
	if err := s.Apply(difference(nil, other)); err == nil {
		t.Error("after a restart the id was used again while an affinity entry named it")
	}
	k.before = nil
	s.Collect()
	if _, err := s.Retry(time.Now().Add(time.Minute)); err != nil {
		t.Errorf("with the entry gone the id is free: %v", err)
	}
	if len(k.affinity.entries) != 0 {
		t.Errorf("affinity entries left: %v", k.affinity.entries)
	}
}

// TestAuditMendsDamage: whatever is changed behind the agent's back is found,
// counted and mended.
func TestAuditMendsDamage(t *testing.T) {
	r := newRand(t)
	for name, damage := range map[string]func(k *fakeKernel, key datapath.FrontendKey, row uint32){
		"index entry removed":    func(k *fakeKernel, key datapath.FrontendKey, _ uint32) { delete(k.index.entries, key) },
		"index entry led astray": func(k *fakeKernel, key datapath.FrontendKey, row uint32) { k.index.entries[key] = row + 1 },
		"row changed":            func(k *fakeKernel, _ datapath.FrontendKey, row uint32) { k.rows.rows[row].AffinitySeconds++ },
		"slot changed": func(k *fakeKernel, _ datapath.FrontendKey, row uint32) {
			k.slots.rows[k.rows.rows[row].Decisions[0].First] = 0
		},
		"backend changed": func(k *fakeKernel, _ datapath.FrontendKey, row uint32) {
			k.backends.rows[k.slots.rows[k.rows.rows[row].Decisions[0].First]].Port = 9
		},
		"service name removed": func(k *fakeKernel, _ datapath.FrontendKey, row uint32) {
			delete(k.services.entries, k.rows.rows[row].Service)
		},
		"foreign network": func(k *fakeKernel, _ datapath.FrontendKey, _ uint32) {
			k.networks.entries[datapath.NetworkKey{Prefixlen: 8}] = datapath.NetworkService
		},
		"foreign frontend": func(k *fakeKernel, _ datapath.FrontendKey, row uint32) {
			k.index.entries[datapath.FrontendKey{Port: 1}] = row
		},
		"foreign source range": func(k *fakeKernel, _ datapath.FrontendKey, _ uint32) {
			k.ranges.entries[datapath.SourceRangeKey{SourceSet: 99, Prefixlen: 32 + 96}] = 1
		},
		"reserved port removed": func(k *fakeKernel, _ datapath.FrontendKey, _ uint32) {
			delete(k.reserved.entries, reservedHere)
		},
		"foreign reserved port": func(k *fakeKernel, _ datapath.FrontendKey, _ uint32) {
			k.reserved.entries[datapath.ReservedPort{Port: 7, Protocol: 6, IpVersion: 4}] = 1
		},
		"foreign service": func(k *fakeKernel, _ datapath.FrontendKey, _ uint32) {
			k.services.entries[4711] = datapath.ServiceName{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := newFakeKernel(t, datapath.Limits{Frontends: 64, Slots: 400, Backends: 64})
			s := newSyncer(t, k)
			plans := randomPlans(r, 6)
			plans[ref("simple")] = simplePlan(ref("simple"), 99, 3)
			plans[ref("open")] = publicPlan(ref("open"), 98, 30080)
			mustApply(t, s, difference(nil, plans))
			key := tableKey(plans[ref("simple")].Frontends[0].Key)
			damage(k, key, k.index.entries[key])
			k.t = &testing.T{} // mending overwrites what a program may be reading: it is wrong anyway
			if n, err := s.Audit(); n != 1 || err != nil {
				t.Errorf("audit: %d repairs, %v", n, err)
			}
			k.t = t
			if diff := cmp.Diff(stateOf(plans), k.state(), compare); diff != "" {
				t.Errorf("planned (-) and met (+):\n%s", diff)
			}
			k.mustReserveOnly(t)
			if n, err := s.Audit(); n != 0 || err != nil {
				t.Errorf("second audit: %d repairs, %v", n, err)
			}
		})
	}
}

// TestGarbageAtStart: tables that make no sense are no reason not to start.
func TestGarbageAtStart(t *testing.T) {
	r := newRand(t)
	for range 50 {
		k := newFakeKernel(t, datapath.Limits{Frontends: 64, Slots: 400, Backends: 64})
		plans := randomPlans(r, 6)
		mustApply(t, newSyncer(t, k), difference(nil, plans))
		for key := range k.index.entries {
			switch r.IntN(4) {
			case 0:
				k.index.entries[key] = r.Uint32()
			case 1:
				k.index.entries[key] = r.Uint32N(8)
			}
		}
		for key := range k.reserved.entries {
			if r.IntN(2) == 0 {
				delete(k.reserved.entries, key)
				k.reserved.entries[datapath.ReservedPort{Port: uint16(r.IntN(65536))}] = r.Uint32N(2)
			}
		}
		for i := range 40 {
			if r.IntN(4) == 0 {
				k.slots.rows[i] = r.Uint32N(70)
				k.rows.rows[i].Decisions[r.IntN(3)] = datapath.Decision{First: r.Uint32(), Count: r.Uint32N(5)}
				k.rows.rows[i].KeptFirst, k.rows.rows[i].KeptCount = r.Uint32N(90), uint16(r.Uint32N(5))
				k.rows.rows[i].Service = r.Uint32N(9)
			}
		}
		k.t = &testing.T{} // damaged rows lead anywhere
		s := newSyncer(t, k)
		mustApply(t, s, difference(nil, plans))
		mustCollect(t, s)
		k.t = t
		k.mustReserveOnly(t)
		if diff := cmp.Diff(stateOf(plans), k.state(), compare); diff != "" {
			t.Fatalf("planned (-) and met (+):\n%s", diff)
		}
	}
}

// TestRestartChangesNothing: with the objects of before, a new agent touches no
// frontend, also where two sets are equal.
func TestRestartChangesNothing(t *testing.T) {
	r := newRand(t)
	for range 50 {
		k := newFakeKernel(t, datapath.Limits{Frontends: 64, Slots: 400, Backends: 64})
		plans := randomPlans(r, 6)
		mustApply(t, newSyncer(t, k), difference(nil, plans))
		s := newSyncer(t, k)
		mustApply(t, s, difference(nil, plans))
		if n := s.Stats().Updates; n != 0 {
			t.Fatalf("%d frontends were changed", n)
		}
	}
}

// TestStatusDuringChange: whoever asks while a large change goes on learns what
// is applied and what is still pending.
func TestStatusDuringChange(t *testing.T) {
	k := newFakeKernel(t, datapath.Limits{Frontends: 1024, Slots: 1024, Backends: 1024})
	s := newSyncer(t, k)
	plans := map[service.Ref]*service.Plan{}
	for i := range 200 {
		owner := ref(fmt.Sprintf("s%03d", i))
		plans[owner] = simplePlan(owner, i, 1)
	}
	seen := map[State]int{}
	asked, answered := make(chan bool, 1), make(chan bool)
	k.after = func() {
		select {
		case asked <- true: // the first operation: from here on somebody waits for an answer
			go func() {
				for _, st := range s.Status() {
					seen[st.State]++
				}
				close(answered)
			}()
			time.Sleep(50 * time.Millisecond)
		default:
			time.Sleep(time.Millisecond)
		}
	}
	mustApply(t, s, difference(nil, plans))
	<-answered
	if seen[Applied] == 0 || seen[Pending] == 0 || seen[Applied]+seen[Pending] != 200 {
		t.Errorf("states during the change: %v", seen)
	}
	for _, st := range s.Status() {
		if st.State != Applied {
			t.Errorf("after the change: %+v", st)
		}
	}
}

// TestServiceCIDRs follow the plan, and a restart.
func TestServiceCIDRs(t *testing.T) {
	k := newFakeKernel(t, datapath.Limits{})
	s := newSyncer(t, k)
	for _, cidrs := range [][]string{{"10.96.0.0/16", "fd00:96::/112"}, {"10.97.0.0/16"}, {}} {
		prefixes := []netip.Prefix{}
		for _, c := range cidrs {
			prefixes = append(prefixes, netip.MustParsePrefix(c))
		}
		mustApply(t, s, service.Delta{ServiceCIDRs: &prefixes})
		var got []string
		for key := range k.networks.entries {
			got = append(got, key.Prefix().String())
		}
		if len(got) != len(cidrs) {
			t.Errorf("want %v, have %v", cidrs, got)
		}
		for _, c := range cidrs {
			if k.networks.entries[networkKey(netip.MustParsePrefix(c))] != datapath.NetworkService {
				t.Errorf("%s is not there: %v", c, got)
			}
		}
		s = newSyncer(t, k)
	}
}
