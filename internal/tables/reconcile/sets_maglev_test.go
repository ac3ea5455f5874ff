// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"net/netip"
	"strings"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// maglevPlan is simplePlan with a Maglev table.
func maglevPlan(owner service.Ref, number, backends int, size uint32) *service.Plan {
	plan := simplePlan(owner, number, backends)
	plan.TableSize = size
	return plan
}

// TestAuditRepairsMaglevTable: a changed slot of the table or of the list before it, or a changed row of
// lists, is repaired; also after a restart, when the content of the table has been read from the slots.
func TestAuditRepairsMaglevTable(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		slot := func(offset int) func(*fakeKernel, uint32) {
			return func(k *fakeKernel, row uint32) { k.slots.rows[int(k.rows.rows[row].Decisions[0].First)+offset] += 7 }
		}
		for name, damage := range map[string]func(k *fakeKernel, row uint32){
			"table": slot(5), "end of the table": slot(250), "last member": slot(-1), "first member": slot(-3),
			"number of members": func(k *fakeKernel, row uint32) { k.lists.rows[row].Members[0].Count-- },
			"retained backends": func(k *fakeKernel, row uint32) { k.lists.rows[row].Retained.Count++ },
			"no lists":          func(k *fakeKernel, row uint32) { k.rows.rows[row].Lists = 0 },
			"lists of another":  func(k *fakeKernel, row uint32) { k.rows.rows[row].Lists++ },
		} {
			k := newFakeKernel(t, bpf.Limits{Slots: 1000})
			s := newSyncer(t, k)
			owner := ref("web")
			plans := map[service.Ref]*service.Plan{owner: maglevPlan(owner, 1, 3, 251)}
			mustApply(t, s, difference(nil, plans))
			if restarted {
				s = newSyncer(t, k)
				mustApply(t, s, difference(nil, plans))
			}
			damage(k, k.index.entries[codec.FrontendKey(plans[owner].Frontends[0].Key)])
			k.t = &testing.T{} // repairs overwrite what a program may be reading: it is wrong anyway
			if n, err := s.Audit(); n != 1 || err != nil {
				t.Errorf("%s, restarted %v: %d repairs, %v", name, restarted, n, err)
			}
			k.t = t
			k.mustHold(t, plans, name)
			if n, err := s.Audit(); n != 0 || err != nil {
				t.Errorf("%s, restarted %v: second audit: %d repairs, %v", name, restarted, n, err)
			}
		}
	}
}

// TestMaglevRestart: a new agent confirms weights by the content of the table. It writes nothing if they
// are the same, or all twice as large; for other weights, another size or another algorithm it writes the
// table to free slots.
func TestMaglevRestart(t *testing.T) {
	owner := ref("web")
	weighted := func(weights ...uint8) *service.Plan {
		plan := maglevPlan(owner, 1, len(weights), 251)
		for i, w := range weights {
			plan.Sets[0].Backends[i].Weight = w
		}
		return plan
	}
	other, random := weighted(1, 2, 3), weighted(1, 2, 3)
	other.TableSize, random.TableSize = 257, 0
	for _, test := range []struct {
		name    string
		plan    *service.Plan
		updates uint64
	}{
		{"the same", weighted(1, 2, 3), 0},
		{"twice the weights", weighted(2, 4, 6), 0},
		{"another weight", weighted(1, 2, 4), 1},
		{"another size", other, 1},
		{"another algorithm", random, 1},
	} {
		k := newFakeKernel(t, bpf.Limits{Slots: 1000})
		mustApply(t, newSyncer(t, k), difference(nil, map[service.Ref]*service.Plan{owner: weighted(1, 2, 3)}))
		_, ids := k.ids()
		s := newSyncer(t, k)
		stores := 0
		k.before = func(operation string) error {
			if strings.HasPrefix(operation, "store "+bpf.SockMapSlots) {
				stores++
			}
			return nil
		}
		plans := map[service.Ref]*service.Plan{owner: test.plan}
		mustApply(t, s, difference(nil, plans))
		if n := s.Stats().Updates; n != test.updates || (stores > 0) != (test.updates > 0) {
			t.Errorf("%s: %d frontends changed, %d slots written", test.name, n, stores)
		}
		mustCollect(t, s)
		k.mustHold(t, plans, test.name)
		sameIDs(t, k, nil, ids)
		if used := s.alloc.slots.used(); test.plan.TableSize > 0 && used != roundSlots(test.plan.TableSize+3) {
			t.Errorf("%s: %d slots are in use", test.name, used)
		}
	}
}

// TestMaglevDoesNotFit: what does not fit names the flag, and the previous state stays in effect.
func TestMaglevDoesNotFit(t *testing.T) {
	owner, second := ref("web"), ref("second")
	k := newFakeKernel(t, bpf.Limits{Slots: 600})
	s := newSyncer(t, k)
	before := map[service.Ref]*service.Plan{owner: maglevPlan(owner, 1, 3, 251)}
	mustApply(t, s, difference(nil, before))
	for _, c := range []struct {
		flag  string
		plans map[service.Ref]*service.Plan
	}{
		{"--max-slots", map[service.Ref]*service.Plan{second: maglevPlan(second, 2, 3, 251)}},
		{"--maglev-table-size", map[service.Ref]*service.Plan{owner: maglevPlan(owner, 1, 8, 7), second: nil}},
	} {
		err := s.Apply(service.Delta{Plans: c.plans})
		if err == nil || !strings.Contains(err.Error(), c.flag) {
			t.Errorf("want an error that names %s: %v", c.flag, err)
		}
		k.mustHold(t, before, "after the change that does not fit")
	}
}

// TestMaglevSameOnNodes: two nodes that got the same backends in different ways, with different ids and
// different ones of them local, have the same table.
func TestMaglevSameOnNodes(t *testing.T) {
	owner, other := ref("web"), ref("other")
	backend := func(n byte, local bool) service.Backend {
		return service.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 10, 1, n}), 8080), Local: local, Weight: n}
	}
	plan := func(local byte) *service.Plan {
		plan := maglevPlan(owner, 1, 0, 251)
		for n := byte(1); n <= 5; n++ {
			plan.Sets[0].Backends = append(plan.Sets[0].Backends, backend(n, n == local))
		}
		return plan
	}
	var tables [2][]netip.AddrPort
	for node := range tables {
		k := newFakeKernel(t, bpf.Limits{Slots: 1000})
		s := newSyncer(t, k)
		if node == 1 {
			mustApply(t, s, difference(nil, map[service.Ref]*service.Plan{other: simplePlan(other, 9, 7)}))
			earlier := maglevPlan(owner, 1, 0, 251)
			earlier.Sets[0].Backends = []service.Backend{backend(5, false), backend(9, false)}
			mustApply(t, s, service.Delta{Plans: map[service.Ref]*service.Plan{owner: earlier}})
		}
		mustApply(t, s, service.Delta{Plans: map[service.Ref]*service.Plan{owner: plan(byte(node + 1))}})
		row := k.rows.rows[k.index.entries[codec.FrontendKey(plan(0).Frontends[0].Key)]]
		tables[node] = k.table(row.Decisions[0])
	}
	for slot := range tables[0] {
		if tables[0][slot] != tables[1][slot] {
			t.Fatalf("slot %d leads to %s on one node, to %s on the other", slot, tables[0][slot], tables[1][slot])
		}
	}
}
