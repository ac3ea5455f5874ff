// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"fmt"

	"beeline.io/beeline/internal/bpf"
)

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
		if shared(table) {
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
	shares, need := m.shares, sharedOut(c, table)
	if most := share(shares.Service, limit); shares.Service > 0 && need > most {
		return shareError(table, need, most, "one Service", "service-share")
	}
	sum := sharedOut(m.namespaces[a.ref.Namespace], table) - sharedOut(a.held, table) + need
	if most := share(shares.Namespace, limit); shares.Namespace > 0 && sum > most {
		return shareError(table, need, most, "all of namespace "+a.ref.Namespace, "namespace-share")
	}
	return nil
}

// sharedOut returns what counts towards a share of a table.
func sharedOut(c cost, table int) int64 {
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
