// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"fmt"
	"net/netip"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
)

// A cost is the number of entries of each table that a plan takes.
type cost [costKinds]int64

// The tables that plans share.
const (
	costFrontends = iota
	costServices
	costSlots
	costBackends
	costRanges
	costTables
	// costHistories are slots, too: those of histories that may be needed later (slotHistory). A plan
	// that fits without them is not refused because of them.
	costHistories = costTables
	costKinds     = costTables + 1
)

var costNames = [costTables]string{
	bpf.SockMapFrontends, bpf.SockMapServices, bpf.SockMapSlots, bpf.SockMapBackends, bpf.SockMapSourceRanges,
}

// deduplicated reports whether plans share entries of a table: equal endpoints and equal lists of source ranges
// have one entry, so the sum of all costs exceeds what is in use.
func deduplicated(table int) bool { return table == costBackends || table == costRanges }

// limitsOf returns the sizes of the tables.
func limitsOf(t *bpf.Tables) cost {
	return cost{int64(t.Frontends.Max()), int64(t.Services.Max()), int64(t.Slots.Len()), int64(t.Backends.Len()) - 1, int64(t.SourceRanges.Max()), 0}
}

// costOf returns the cost of a plan. The history of an untracked frontend takes as much as its table, but
// not all frontends have one at the same time: half of it is counted.
func costOf(p *service.Plan) (c cost) {
	ports, untracked := map[service.Port]bool{}, map[service.SetKey]bool{}
	lists := map[*netip.Prefix]bool{}
	for i := range p.Frontends {
		f := &p.Frontends[i]
		ports[f.Port] = true
		if f.Untracked {
			untracked[f.Set(f.Decisions[service.FromOutside])] = true
		}
		if len(f.SourceRanges) > 0 && !lists[&f.SourceRanges[0]] {
			lists[&f.SourceRanges[0]] = true
			c[costRanges] += int64(len(f.SourceRanges))
		}
	}
	most := map[service.SetKey]int{} // without the scope: the sets of a port mostly have the same backends
	for i := range p.Sets {
		set := &p.Sets[i]
		n := slotsOf(set, p.TableSize)
		if untracked[set.Key] {
			c[costHistories] += int64(n / 2)
		}
		c[costSlots] += int64(n)
		key := set.Key
		key.Scope = 0
		most[key] = max(most[key], len(set.Backends))
	}
	for i := range p.Retained {
		c[costSlots] += int64(roundSlots(uint32(len(p.Retained[i].Backends))))
		c[costBackends] += int64(len(p.Retained[i].Backends))
	}
	for _, n := range most {
		c[costBackends] += int64(n)
	}
	c[costFrontends], c[costServices] = int64(len(p.Frontends)), int64(len(ports))
	return c
}

// largestSet returns the slots of the largest set of a plan: changing it takes as many again.
func largestSet(p *service.Plan) (most int64) {
	for i := range p.Sets {
		most = max(most, int64(slotsOf(&p.Sets[i], p.TableSize)))
	}
	return most
}

// fits returns why an object may not take c, nil if it may. An object may always keep what it has. New
// objects must leave room for changes of those that are served.
func (m *admission) fits(a *account, c cost) error {
	for table := range costTables {
		limit, need, held := m.limits[table], c[table], a.held[table]
		if need <= held {
			continue
		}
		if err := m.withinShares(a, table, c, limit); err != nil {
			return err
		}
		if deduplicated(table) {
			continue // known only once it is in the tables
		}
		room := limit - m.total[table] + held
		if !a.served() {
			room -= m.reserveOf(table, a)
		}
		if need > room {
			return roomError(table, need, max(room, 0), limit)
		}
	}
	return nil
}

// withinShares returns an error if c is more of a table than one object or its namespace may have.
func (m *admission) withinShares(a *account, table int, c cost, limit int64) error {
	shares, need := m.shares, charged(c, table)
	if most := percentOf(shares.Service, limit); shares.Service > 0 && need > most {
		return shareError(table, need, most, "one Service", "service-share")
	}
	sum := charged(m.namespaces[a.ref.Namespace], table) - charged(a.held, table) + need
	if most := percentOf(shares.Namespace, limit); shares.Namespace > 0 && sum > most {
		return shareError(table, need, most, "all of namespace "+a.ref.Namespace, "namespace-share")
	}
	return nil
}

// charged returns what counts towards a share of a table.
func charged(c cost, table int) int64 {
	if table == costSlots {
		return c[costSlots] + c[costHistories]
	}
	return c[table]
}

// reserveOf returns how much of a table a new object must leave free: a fixed part, and room to change its
// largest set.
func (m *admission) reserveOf(table int, a *account) int64 {
	reserve := m.limits[table] / updateReserve
	if table == costSlots {
		reserve = max(reserve, largestSet(a.plan))
	}
	return reserve
}

func shareError(table int, needs, most int64, who, flag string) error {
	return fmt.Errorf("needs %d entries of table %s, and %s may have %d: make it smaller, or raise --%s or --%s and restart the agent",
		needs, costNames[table], who, most, flag, bpf.LimitFlag(costNames[table]))
}

func roomError(table int, needs, room, limit int64) error {
	return fmt.Errorf("needs %d entries of table %s, and %d of %d are free for it: raise --%s and restart the agent",
		needs, costNames[table], room, limit, bpf.LimitFlag(costNames[table]))
}
