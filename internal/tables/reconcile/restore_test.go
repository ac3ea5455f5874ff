// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// ids are the ids that must not change while what they name exists.
func (k *fakeKernel) ids() (services map[service.Port]uint32, backends map[string]uint32) {
	services, backends = map[service.Port]uint32{}, map[string]uint32{}
	for id, name := range k.services.entries {
		services[codec.PortOf(name)] = id
	}
	for key := range k.index.entries {
		for _, u := range k.reachable(key) {
			if u.table == k.backends.name {
				row := k.backends.rows[u.number]
				backends[fmt.Sprint(row.AddrPort(), row.Protocol, row.Local, row.Node.Addr())] = u.number
			}
		}
	}
	return services, backends
}

// TestKilledAfterEachOperation stops the agent after every single operation of an update in turn. At that
// moment, as after each operation before, every frontend is either as before or as it should be, for all
// classes of clients at once. The next agent completes the update, and no id changes.
func TestKilledAfterEachOperation(t *testing.T) {
	r := newRand(t)
	killed := errors.New("the agent is dead")
	stops := 0
	changes := 25
	if testing.Short() {
		changes = 10
	}
	for range changes {
		before, after := randomPlans(r, 5), randomPlans(r, 5)
		oldState, newState := stateOf(before), stateOf(after)
		for stop, done := 0, false; !done; stop++ {
			k := smallKernel(t)
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
				_, err = s.CollectGarbage()
			}
			done = err == nil
			if t.Failed() {
				t.Fatalf("after operation %d", stop)
			}
			k.before, k.after = nil, nil
			k.reading = nil // the dead agent's last grace period ended long ago
			stops++

			s = newSyncer(t, k)
			mustApply(t, s, difference(nil, after))
			mustCollect(t, s)
			k.mustHold(t, after, fmt.Sprintf("killed after operation %d", stop))
			sameIDs(t, k, services, backends)
			k.mustReserveOnly(t)
			if n, err := s.Audit(); n != 0 || err != nil {
				t.Fatalf("audit: %d repairs, %v", n, err)
			}
		}
	}
	t.Logf("killed after each of %d operations", stops)
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

// sameIDs fails unless what existed before and still exists has the same id.
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

// filledKernel returns tables that another agent has filled with random plans.
func filledKernel(t *testing.T, r *rand.Rand) (*fakeKernel, map[service.Ref]*service.Plan) {
	t.Helper()
	k, plans := smallKernel(t), randomPlans(r, 6)
	mustApply(t, newSyncer(t, k), difference(nil, plans))
	return k, plans
}

// TestRestartChangesNothing: with the same objects as before, a new agent changes no frontend, even if two
// sets are equal.
func TestRestartChangesNothing(t *testing.T) {
	r := newRand(t)
	for range 50 {
		k, plans := filledKernel(t, r)
		s := newSyncer(t, k)
		mustApply(t, s, difference(nil, plans))
		if n := s.Stats().Updates; n != 0 {
			t.Fatalf("%d frontends were changed", n)
		}
	}
}

// TestGarbageAtStart: the agent starts with invalid tables, too.
func TestGarbageAtStart(t *testing.T) {
	r := newRand(t)
	for range 50 {
		k, plans := filledKernel(t, r)
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
				k.reserved.entries[bpf.ReservedPort{Port: uint16(r.IntN(65536))}] = r.Uint32N(2)
			}
		}
		for i := range 40 {
			if r.IntN(4) == 0 {
				k.slots.rows[i] = r.Uint32N(70)
				k.rows.rows[i].Decisions[r.IntN(3)] = bpf.Decision{First: r.Uint32(), Count: r.Uint32N(5)}
				k.rows.rows[i].Lists = r.Uint32N(3) * uint32(i)
				k.lists.rows[i].Members[r.IntN(3)] = codec.Range{First: r.Uint32(), Count: r.Uint32N(5)}
				k.lists.rows[i].Retained = codec.Range{First: r.Uint32N(90), Count: r.Uint32N(5)}
				k.lists.rows[i].History = codec.Range{First: r.Uint32N(90), Count: r.Uint32N(5)}
				k.rows.rows[i].Service = r.Uint32N(9)
			}
		}
		k.t = &testing.T{} // damaged rows lead anywhere
		s := newSyncer(t, k)
		mustApply(t, s, difference(nil, plans))
		mustCollect(t, s)
		k.t = t
		k.mustReserveOnly(t)
		k.mustHold(t, plans, "after a start from garbage")
	}
}
