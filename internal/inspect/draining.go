// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/conntrack"
)

// Draining is a backend that gets no new connections, because it is in no set any more or fails its health
// check.
type Draining struct {
	Address  netip.AddrPort   `json:"address"`
	Protocol service.Protocol `json:"protocol"`
	// Port is the name of the service port; empty for a backend of several Services.
	Port string `json:"port,omitempty"`
	// Connections is the number of remaining connections of clients that the edge serves. Connections of
	// the socket shortcut have no conntrack entries and are not counted.
	Connections int `json:"connections"`
	// IdleSeconds is the time since the last packet of a client in any of Connections.
	IdleSeconds float64 `json:"idleSeconds,omitempty"`
	// DSR: the edge sees only what clients send. Where a router spreads clients over several balancers,
	// another one may have seen the end of a connection.
	DSR bool `json:"dsr,omitempty"`
	// Untracked: connections from before the change have no conntrack entry here until they send something
	// (DSR with Maglev), and are not in Connections.
	Untracked bool `json:"untracked,omitempty"`
	// Down: its health check fails.
	Down bool `json:"down,omitempty"`
	// Why is why it is down. It may contain text from the checked server.
	Why string `json:"why,omitempty"`
}

func (l Draining) String() string {
	what := "draining"
	if l.Down {
		what = "down"
	}
	connections := "connections"
	if l.Connections == 1 {
		connections = "connection"
	}
	where := "left"
	if l.DSR || l.Untracked {
		where = "tracked here"
	}
	what = fmt.Sprintf("%s, %d %s %s", what, l.Connections, connections, where)
	if l.DSR && l.Connections > 0 {
		what += fmt.Sprintf(", last packet %v ago", time.Duration(l.IdleSeconds)*time.Second)
	}
	if l.Untracked {
		what += "; connections that are idle since it left are not tracked here: `ss -tn` on the backend shows them"
	}
	if l.Why != "" {
		what += ": " + l.Why
	}
	return what
}

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
func (t *Tables) AddDraining(bpffs string, scope Scope) error {
	flows, err := conntrack.Open(bpffs)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return t.addDraining(flows, scope)
}

func (t *Tables) addDraining(flows *conntrack.Tables, scope Scope) error {
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
		t.drainingBackends(connections)
		return nil
	}
	for i := range t.Services {
		t.Services[i].Draining = t.Services[i].draining(connections)
	}
	return nil
}

// drainingBackends adds the backends that no Service uses. The table of backends has those of untracked flows, too.
func (t *Tables) drainingBackends(connections map[drainingKey]*remaining) {
	untracked := map[drainingKey]bool{}
	t.Backends = slices.DeleteFunc(t.Backends, func(b Backend) bool {
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
func drainingOf(connections map[drainingKey]*remaining, untracked map[drainingKey]bool, port func(drainingKey) string) (all []Draining) {
	for k := range untracked {
		if connections[k] == nil {
			connections[k] = &remaining{dsr: true}
		}
	}
	for k, r := range connections {
		all = append(all, Draining{Address: k.address, Protocol: k.protocol, Port: port(k),
			Connections: r.connections, IdleSeconds: r.idle.Seconds(), DSR: r.dsr, Untracked: untracked[k]})
	}
	sortDraining(all)
	return all
}

// draining returns the backends of a Service's flows that are in no set of the same port.
func (s *Service) draining(connections map[drainingKey]*remaining) (all []Draining) {
	names, serving, untracked := map[uint32]string{}, map[drainingKey]bool{}, map[drainingKey]bool{}
	note := func(f *Frontend, members []Member, in map[drainingKey]bool) {
		for _, b := range members {
			if a, err := netip.ParseAddrPort(b.Address); err == nil {
				in[drainingKey{f.ServiceID, a, f.Protocol}] = true
			}
		}
	}
	for i := range s.Frontends {
		f := &s.Frontends[i]
		names[f.ServiceID] = f.Port
		for _, d := range []Decision{f.Pod, f.Node, f.Outside} {
			note(f, d.Backends, serving)
		}
		note(f, f.Stable, untracked)
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

// AddDown marks the draining backends that are down, and adds those that are down without connections.
func (s *Service) AddDown(h *Health) {
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
func (t *Tables) AddDown(h *HealthStatus) {
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

func noteDown(all []Draining, b BackendHealth) []Draining {
	for i := range all {
		if all[i].Address == b.Address && all[i].Protocol == b.Protocol {
			all[i].Down, all[i].Why = true, b.Why
			return all
		}
	}
	return append(all, Draining{Address: b.Address, Protocol: b.Protocol, Down: true, Why: b.Why})
}

func sortDraining(all []Draining) {
	slices.SortFunc(all, func(a, b Draining) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
}
