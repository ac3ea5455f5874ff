// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"fmt"
	"net/netip"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/tables/maglev"
)

// both returns a plan of one port in both families, each with a Maglev table of the default size.
func both(n byte, backends ...byte) *service.Plan {
	owner := ref(fmt.Sprint("web", n))
	plan := maglevPlan(owner, int(n), 0, maglev.DefaultSize)
	for _, b := range backends {
		plan.Sets[0].Backends = append(plan.Sets[0].Backends, backendOf(b))
	}
	f, set := plan.Frontends[0], plan.Sets[0]
	set.Key.Family, set.Backends = service.IPv6, nil
	for _, b := range backends {
		addr := netip.AddrFrom16([16]byte{0xfd, 15: b})
		set.Backends = append(set.Backends, service.Backend{Addr: netip.AddrPortFrom(addr, 8080), Weight: 1})
	}
	f.Key.Addr = netip.AddrFrom16([16]byte{0xfd, 1, 15: n})
	plan.Sets, plan.Frontends = append(plan.Sets, set), append(plan.Frontends, f)
	for i := range plan.Frontends {
		plan.Frontends[i].DSR, plan.Frontends[i].Untracked = service.DSRIPIP, true
	}
	return plan
}

// TestFreshStart: 40 untracked ports in both families fit by default on a new node, none of them needs a
// second table, and a change is served both immediately and after the first GC pass.
func TestFreshStart(t *testing.T) {
	const ports = 40
	m := &memory{t: t, k: newFakeKernel(t, bpf.Limits{}), now: 1000}
	m.k.trusts = true
	m.restart()
	all := service.Delta{Plans: map[service.Ref]*service.Plan{}}
	for n := range byte(ports) {
		all.Plans[ref(fmt.Sprint("web", n))] = both(n, 1, 2)
	}
	mustApply(t, m.s, all)
	rows := func(count int, flags bpf.SockFrontendFlag) {
		t.Helper()
		for _, number := range m.k.index.entries {
			if m.k.rows.rows[number].Flags&uint16(flags) == uint16(flags) {
				count--
			}
		}
		if count != 0 {
			t.Errorf("%d frontends too few have flags %#x", count, flags)
		}
	}
	rows(2*ports, bpf.FlagUntracked|bpf.FlagHistory)
	table := maglev.DefaultSize + 3 // the members, and their number
	if used, most := m.s.alloc.slots.used(), 2*ports*(roundSlots(uint32(table))+4); used > most {
		t.Errorf("%d slots are in use, want at most %d: a table for each port and family, and next to no history", used, most)
	}
	change := func(backends ...byte) {
		t.Helper()
		mustApply(t, m.s, service.Delta{Plans: map[service.Ref]*service.Plan{ref("web7"): both(7, backends...)}})
		for _, f := range both(7, backends...).Frontends {
			d := m.k.rows.rows[m.k.index.entries[codec.FrontendKey(f.Key)]].Decisions[service.FromOutside]
			found := map[byte]bool{}
			for _, b := range m.k.table(d) {
				found[b.Addr().AsSlice()[len(b.Addr().AsSlice())-1]] = true
			}
			for _, b := range backends {
				if !found[b] {
					t.Errorf("%s does not lead to backend %d", f.Key, b)
				}
			}
		}
	}
	change(1, 2, 3)
	rows(2*ports, bpf.FlagUntracked|bpf.FlagHistory)
	m.now += 2
	m.gc(nil)
	rows(0, bpf.FlagHistory)
	rows(2*ports, bpf.FlagUntracked)
	mustCollect(t, m.s)
	change(1, 2)
	rows(2, bpf.FlagUntracked|bpf.FlagHistory)
}
