// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
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
	Connections int  `json:"connections"`
	Down        bool `json:"down,omitempty"` // its health check fails
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
	what = fmt.Sprintf("%s, %d %s left", what, l.Connections, connections)
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

// AddDraining adds the backends that have connections but are in no set: to each Service those of its ports or,
// with scope.Outline, all of them to Tables. Without an edge it adds none.
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
	connections := map[drainingKey]int{}
	err := flows.Assured.Walk(func(key conntrack.Tuple, track *conntrack.Entry) bool {
		if track.IsReply() || track.Flags&uint8(datapath.ConntrackOutbound) != 0 || conntrack.StateOf(track, nil) == datapath.ConntrackClosed {
			return true
		}
		k := drainingKey{track.Lb.Service, track.Xlate.To(), service.Protocol(key.Protocol)}
		if scope.Outline {
			k.id = 0
		}
		connections[k]++
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

// drainingBackends keeps the backends without a row in the table of backends.
func (t *Tables) drainingBackends(connections map[drainingKey]int) {
	for _, b := range t.Backends {
		if a, err := netip.ParseAddrPort(b.Address); err == nil {
			delete(connections, drainingKey{0, a, b.Protocol})
		}
	}
	for k, n := range connections {
		t.Draining = append(t.Draining, Draining{Address: k.address, Protocol: k.protocol, Connections: n})
	}
	sortDraining(t.Draining)
}

// draining returns the backends of a Service's flows that are in no set of the same port.
func (s *Service) draining(connections map[drainingKey]int) (all []Draining) {
	names, serving := map[uint32]string{}, map[drainingKey]bool{}
	for _, f := range s.Frontends {
		names[f.ServiceID] = f.Port
		for _, d := range []Decision{f.Pod, f.Node, f.Outside} {
			for _, b := range d.Backends {
				if a, err := netip.ParseAddrPort(b.Address); err == nil {
					serving[drainingKey{f.ServiceID, a, f.Protocol}] = true
				}
			}
		}
	}
	for k, n := range connections {
		if name, ours := names[k.id]; ours && !serving[k] {
			all = append(all, Draining{Address: k.address, Protocol: k.protocol, Port: name, Connections: n})
		}
	}
	sortDraining(all)
	return all
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
