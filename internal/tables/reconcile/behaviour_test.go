// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/tables/maglev"
)

// behaviour is what a client of one class gets at a frontend: a verdict, or the backends with their shares;
// and everything else in the row.
type behaviour struct {
	decisions [service.SourceClasses]string
	kept      string
	kind      service.FrontendKind
	service   service.Port
	affinity  uint32
	sources   string
	untracked bool
	dsr       service.DSR
}

// meets looks up a frontend as the programs do.
func (k *fakeKernel) meets(key service.FrontendKey) (b behaviour, ok bool) {
	row, ok := k.index.entries[codec.FrontendKey(key)]
	if !ok {
		return b, false
	}
	content := k.rows.rows[row]
	if content.Key != codec.FrontendKey(key) {
		k.t.Errorf("the index leads a packet to %s to the row of another frontend, %s", key, content.Key)
	}
	for class, d := range content.Decisions {
		if d.Count == 0 {
			b.decisions[class] = fmt.Sprint(service.Verdict(d.First))
			continue
		}
		if content.Flags&uint16(bpf.FlagMaglev) == 0 {
			b.decisions[class] = k.members(d.First, d.Count)
			continue
		}
		list := k.listsOf(row).Members[class]
		b.decisions[class] = fmt.Sprint("maglev ", k.members(list.First, list.Count), k.table(d))
	}
	if kept := k.listsOf(row).Retained; kept.Count > 0 {
		b.kept = k.members(kept.First, kept.Count)
	}
	name, known := k.services.entries[content.Service]
	if !known {
		k.t.Errorf("the row of the frontend %s has service id %d, which has no name", key, content.Service)
	}
	b.kind, b.service, b.affinity, b.sources = service.FrontendKind(content.Kind), codec.PortOf(name), content.AffinitySeconds, k.admitted(content.SourceSet)
	b.dsr, b.untracked = codec.DSROf(bpf.DSR(content.Dsr)), content.Flags&uint16(bpf.FlagUntracked) != 0
	return b, true
}

// members returns the members of a set, or retained backends. They must be sorted by address.
func (k *fakeKernel) members(first, count uint32) string {
	var members []string
	var last netip.AddrPort
	for n := range count {
		backend := k.backends.rows[k.slots.rows[first+n]]
		if backend.AddrPort().Compare(last) < 0 {
			k.t.Errorf("of the members from slot %d on, %s comes after %s: programs do not find one of them (bpf/lb/members.h)", first, backend.AddrPort(), last)
		}
		last = backend.AddrPort()
		members = append(members, fmt.Sprint(backend.AddrPort(), backend.Protocol, backend.Local, backend.Node.Addr()))
	}
	slices.Sort(members)
	return fmt.Sprint(members)
}

// table returns the backends in the slots of a Maglev table, in order.
func (k *fakeKernel) table(d bpf.Decision) (addresses []netip.AddrPort) {
	for n := range d.Count {
		addresses = append(addresses, k.backends.rows[k.slots.rows[d.First+n]].AddrPort())
	}
	return addresses
}

func plannedTable(size uint32, set service.BackendSet) string {
	var backends []maglev.Backend
	set.Backends = slices.Clone(set.Backends)
	for i, b := range set.Backends {
		backends = append(backends, maglev.Backend{Addr: b.Addr, Weight: b.Weight})
		set.Backends[i].Weight = 1
	}
	slots, err := maglev.Fill(size, backends)
	var addresses []netip.AddrPort
	for _, i := range slots {
		addresses = append(addresses, backends[i].Addr)
	}
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint("maglev ", plannedMembers(set), addresses)
}

func (k *fakeKernel) admitted(id uint32) string {
	if id == 0 {
		return "all"
	}
	var all []string
	for key := range k.ranges.entries {
		if key.SourceSet == id {
			all = append(all, key.Prefix().String())
		}
	}
	slices.Sort(all)
	return fmt.Sprint(all)
}

func plannedMembers(set service.BackendSet) string {
	divisor := uint8(0)
	for _, backend := range set.Backends {
		divisor = gcd(divisor, backend.Weight)
	}
	var members []string
	for _, backend := range set.Backends {
		local := 0
		if backend.Local {
			local = 1
		}
		node := backend.Node
		if !node.IsValid() {
			node = backend.Addr.Addr()
		}
		for range backend.Weight / divisor {
			members = append(members, fmt.Sprint(backend.Addr, uint8(set.Key.Port.Protocol), local, node))
		}
	}
	slices.Sort(members)
	return fmt.Sprint(members)
}

// planned returns what a client should get.
func planned(plan *service.Plan, f service.Frontend) (b behaviour) {
	for class, d := range f.Decisions {
		if d.Verdict != service.Balance {
			b.decisions[class] = fmt.Sprint(d.Verdict)
			continue
		}
		for _, set := range plan.Sets {
			if set.Key == f.Set(d) {
				b.decisions[class] = plannedMembers(set)
				if plan.TableSize > 0 {
					b.decisions[class] = plannedTable(plan.TableSize, set)
				}
			}
		}
	}
	for _, set := range plan.Retained {
		if set.Key.Port == f.Port && set.Key.Family == service.FamilyOf(f.Key.Addr) {
			b.kept = plannedMembers(set)
		}
	}
	b.kind, b.service, b.affinity, b.sources = f.Kind, f.Port, uint32(f.Affinity.Seconds()), "all"
	b.dsr, b.untracked = f.DSR, f.Untracked
	if f.SourceRanges != nil {
		var all []string
		for _, p := range f.SourceRanges {
			all = append(all, p.String())
		}
		slices.Sort(all)
		b.sources = fmt.Sprint(all)
	}
	return b
}

// state returns what clients should get at every frontend.
type state map[service.FrontendKey]behaviour

func stateOf(plans map[service.Ref]*service.Plan) state {
	all := state{}
	for _, plan := range plans {
		for _, f := range plan.Frontends {
			all[f.Key] = planned(plan, f)
		}
	}
	return all
}

func (k *fakeKernel) state() state {
	all := state{}
	for key := range k.index.entries {
		name := service.FrontendKey{Addr: key.Address.Addr(), Port: bpf.NetworkOrder(key.Port), Protocol: service.Protocol(key.Protocol)}
		all[name], _ = k.meets(name)
	}
	return all
}

// differences says what clients get that is not planned, of a few frontends; "" if there is nothing.
func differences(planned, found state) string {
	keys := maps.Clone(planned)
	maps.Copy(keys, found)
	var all []string
	for key := range keys {
		want, isPlanned := planned[key]
		got, isFound := found[key]
		switch {
		case isPlanned == isFound && want == got:
		case !isFound:
			all = append(all, fmt.Sprintf("a packet to %s finds no frontend; planned for %s: %s", key, want.service, want))
		case !isPlanned:
			all = append(all, fmt.Sprintf("a packet to %s finds a frontend that no Service has; in its row: %s, %s", key, got.service, got))
		default:
			all = append(all, fmt.Sprintf("a packet to %s of %s finds another frontend than planned\n  found:   %s\n  planned: %s", key, want.service, got, want))
		}
	}
	slices.Sort(all)
	const shown = 5
	if more := len(all) - shown; more > 0 {
		all = append(all[:shown], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, "\n")
}

func (b behaviour) String() string {
	text := fmt.Sprintf("%s; pods get %s, this node %s, clients outside %s; flows that stay: %s; affinity %d s; sources %s", b.kind,
		b.decisions[service.FromPod], b.decisions[service.FromNode], b.decisions[service.FromOutside], cmp.Or(b.kept, "none"), b.affinity, b.sources)
	if b.dsr != "" {
		text += "; DSR " + string(b.dsr)
	}
	if b.untracked {
		text += "; untracked"
	}
	return text
}

// mustHold ends the test if a client gets anything but what is planned.
func (k *fakeKernel) mustHold(t *testing.T, plans map[service.Ref]*service.Plan, when string) {
	t.Helper()
	if all := differences(stateOf(plans), k.state()); all != "" {
		t.Fatalf("%s:\n%s", when, all)
	}
}
