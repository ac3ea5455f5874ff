// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/conntrack"
)

// drainingKey is a backend of a service port; id is 0 if the port does not matter.
type drainingKey struct {
	id       uint32
	address  netip.AddrPort
	protocol service.Protocol
}

// remaining are the connections of a backend.
type remaining struct {
	connections int
	idle        time.Duration // since the last packet of any
	dsr         bool          // all are one-sided
}

func (r *remaining) add(track *conntrack.Entry) {
	idle := conntrack.Idle(track, nil)
	if r.connections == 0 {
		*r = remaining{idle: idle, dsr: true}
	}
	r.connections++
	r.idle, r.dsr = min(r.idle, idle), r.dsr && track.IsOneSided()
}

// AddDraining adds the backends that have connections, or may have, but are in no set: to each Service those of its
// ports or, with scope.Outline, all of them to Tables. Without an edge it adds none.
func AddDraining(t *api.Tables, bpffs string, scope Scope) error {
	flows, err := conntrack.Open(bpffs)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return addDraining(t, flows, scope)
}

func addDraining(t *api.Tables, flows *conntrack.Tables, scope Scope) error {
	connections := map[drainingKey]*remaining{}
	err := flows.Assured.Walk(func(key conntrack.Tuple, track *conntrack.Entry) bool {
		if track.IsReply() || track.Flags&uint8(bpf.ConntrackOutbound) != 0 || conntrack.StateOf(track, nil) == bpf.ConntrackClosed {
			return true
		}
		k := drainingKey{track.Lb.Service, track.Xlate.To(), service.Protocol(key.Protocol)}
		if scope.Outline {
			k.id = 0
		}
		if connections[k] == nil {
			connections[k] = &remaining{}
		}
		connections[k].add(track)
		return true
	})
	if err != nil {
		return err
	}
	if scope.Outline {
		drainingBackends(t, connections)
		return nil
	}
	for i := range t.Services {
		t.Services[i].Draining = draining(&t.Services[i], connections)
	}
	return nil
}

// drainingBackends adds the backends that no Service uses. The table of backends has those of untracked flows, too.
func drainingBackends(t *api.Tables, connections map[drainingKey]*remaining) {
	untracked := map[drainingKey]bool{}
	t.Backends = slices.DeleteFunc(t.Backends, func(b api.Backend) bool {
		a, err := netip.ParseAddrPort(b.Address)
		if err != nil {
			return false
		}
		k := drainingKey{0, a, b.Protocol}
		if len(b.Services) == 0 {
			untracked[k] = true
			return true
		}
		delete(connections, k)
		delete(untracked, k)
		return false
	})
	t.Draining = drainingOf(connections, untracked, func(drainingKey) string { return "" })
}

// drainingOf returns the backends with connections, and those that may have untracked ones.
func drainingOf(connections map[drainingKey]*remaining, untracked map[drainingKey]bool, port func(drainingKey) string) (all []api.Draining) {
	for k := range untracked {
		if connections[k] == nil {
			connections[k] = &remaining{dsr: true}
		}
	}
	for k, r := range connections {
		all = append(all, api.Draining{Address: k.address, Protocol: k.protocol, Port: port(k),
			Connections: r.connections, IdleSeconds: r.idle.Seconds(), DSR: r.dsr, Untracked: untracked[k]})
	}
	sortDraining(all)
	return all
}

// draining returns the backends of a Service's flows that are in no set of the same port.
func draining(s *api.Service, connections map[drainingKey]*remaining) (all []api.Draining) {
	names, serving, untracked := map[uint32]string{}, map[drainingKey]bool{}, map[drainingKey]bool{}
	note := func(f *api.Frontend, members []api.Member, in map[drainingKey]bool) {
		for _, b := range members {
			if a, err := netip.ParseAddrPort(b.Address); err == nil {
				in[drainingKey{f.ServiceID, a, f.Protocol}] = true
			}
		}
	}
	for i := range s.Frontends {
		f := &s.Frontends[i]
		names[f.ServiceID] = f.Port
		for _, d := range []api.Decision{f.FromPods, f.FromNode, f.FromOutside} {
			note(f, d.Backends, serving)
		}
		note(f, f.StableBackends, untracked)
	}
	own := map[drainingKey]*remaining{}
	for k, r := range connections {
		if _, ours := names[k.id]; ours && !serving[k] {
			own[k] = r
		}
	}
	maps.DeleteFunc(untracked, func(k drainingKey, _ bool) bool { return serving[k] })
	return drainingOf(own, untracked, func(k drainingKey) string { return names[k.id] })
}

// AddServiceDown marks the draining backends that are down, and adds those that are down without connections.
func AddServiceDown(s *api.Service, h *api.Health) {
	if h == nil {
		return
	}
	for _, b := range h.Backends {
		if !b.Up {
			s.Draining = noteDown(s.Draining, b)
		}
	}
	sortDraining(s.Draining)
}

// AddDown does the same for the backends of all Services.
func AddDown(t *api.Tables, h *api.HealthStatus) {
	if h == nil {
		return
	}
	serving := map[drainingKey]bool{}
	for _, b := range t.Backends {
		if a, err := netip.ParseAddrPort(b.Address); err == nil {
			serving[drainingKey{0, a, b.Protocol}] = true
		}
	}
	for _, b := range h.Down {
		if !serving[drainingKey{0, b.Address, b.Protocol}] { // another Service may have another check, or none
			t.Draining = noteDown(t.Draining, b)
		}
	}
	sortDraining(t.Draining)
}

func noteDown(all []api.Draining, b api.BackendHealth) []api.Draining {
	for i := range all {
		if all[i].Address == b.Address && all[i].Protocol == b.Protocol {
			all[i].Down, all[i].Why = true, b.Why
			return all
		}
	}
	return append(all, api.Draining{Address: b.Address, Protocol: b.Protocol, Down: true, Why: b.Why})
}

func sortDraining(all []api.Draining) {
	slices.SortFunc(all, func(a, b api.Draining) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
}
