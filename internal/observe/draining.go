// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/edge"
	"beeline.io/beeline/internal/service"
)

// Leaving is a backend that gets no new connection: no set has it any more, or its health check fails.
type Leaving struct {
	Address  netip.AddrPort   `json:"address"`
	Protocol service.Protocol `json:"protocol"`
	// Port is the name of the service port; of a backend of several Services it is empty.
	Port string `json:"port,omitempty"`
	// Connections that it has yet of clients that the edge serves. What pods have connected at the socket is
	// not counted: no record is kept of that.
	Connections int  `json:"connections"`
	Down        bool `json:"down,omitempty"` // its health check fails
}

func (l Leaving) String() string {
	what := "draining"
	if l.Down {
		what = "down"
	}
	if l.Connections == 1 {
		return what + ", 1 connection left"
	}
	return fmt.Sprintf("%s, %d connections left", what, l.Connections)
}

// leavingKey is a backend of a service port; id is 0 where it is not told by which it is reached.
type leavingKey struct {
	id       uint32
	address  netip.AddrPort
	protocol service.Protocol
}

// AddLeaving adds the backends that have connections yet and are not among those that are read: to each Service
// those of its ports, and to the backends those of no Service at all. Where there is no edge there are none.
func (t *Tables) AddLeaving(bpffs string, scope Scope) error {
	flows, err := datapath.OpenFlows(bpffs)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return t.addLeaving(flows, scope)
}

func (t *Tables) addLeaving(flows *datapath.Flows, scope Scope) error {
	connections := map[leavingKey]int{}
	err := flows.Tracks.Walk(func(key datapath.Tuple, track *datapath.Track) bool {
		if track.IsReply() || track.Flags&uint8(datapath.TrackOutbound) != 0 || edge.StateOf(track, nil) == datapath.TrackClosed {
			return true
		}
		k := leavingKey{track.Service, track.Becomes.To(), service.Protocol(key.Protocol)}
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
		t.leavingBackends(connections)
		return nil
	}
	for i := range t.Services {
		t.Services[i].Leaving = t.Services[i].leaving(connections)
	}
	return nil
}

// leavingBackends keeps those of which no row of the table of backends is.
func (t *Tables) leavingBackends(connections map[leavingKey]int) {
	for _, b := range t.Backends {
		if a, err := netip.ParseAddrPort(b.Address); err == nil {
			delete(connections, leavingKey{0, a, b.Protocol})
		}
	}
	for k, n := range connections {
		t.Leaving = append(t.Leaving, Leaving{Address: k.address, Protocol: k.protocol, Connections: n})
	}
	sortLeaving(t.Leaving)
}

// leaving are those that a Service's flows go to, and no set of the same port has.
func (s *Service) leaving(connections map[leavingKey]int) (all []Leaving) {
	names, serving := map[uint32]string{}, map[leavingKey]bool{}
	for _, f := range s.Frontends {
		names[f.ServiceID] = f.Port
		for _, d := range []Decision{f.Pod, f.Node, f.Outside} {
			for _, b := range d.Backends {
				if a, err := netip.ParseAddrPort(b.Address); err == nil {
					serving[leavingKey{f.ServiceID, a, f.Protocol}] = true
				}
			}
		}
	}
	for k, n := range connections {
		if name, ours := names[k.id]; ours && !serving[k] {
			all = append(all, Leaving{Address: k.address, Protocol: k.protocol, Port: name, Connections: n})
		}
	}
	sortLeaving(all)
	return all
}

// AddDown notes which of those that leave are down, and adds those that are down and have no connection.
func (s *Service) AddDown(h *Health) {
	if h == nil {
		return
	}
	for _, b := range h.Backends {
		if !b.Up {
			s.Leaving = noteDown(s.Leaving, b)
		}
	}
	sortLeaving(s.Leaving)
}

// AddDown is the same for the backends of all Services.
func (t *Tables) AddDown(h *HealthStatus) {
	if h == nil {
		return
	}
	serving := map[leavingKey]bool{}
	for _, b := range t.Backends {
		if a, err := netip.ParseAddrPort(b.Address); err == nil {
			serving[leavingKey{0, a, b.Protocol}] = true
		}
	}
	for _, b := range h.Down {
		if !serving[leavingKey{0, b.Address, b.Protocol}] { // another Service may ask otherwise, or not at all
			t.Leaving = noteDown(t.Leaving, b)
		}
	}
	sortLeaving(t.Leaving)
}

func noteDown(all []Leaving, b BackendHealth) []Leaving {
	for i := range all {
		if all[i].Address == b.Address && all[i].Protocol == b.Protocol {
			all[i].Down = true
			return all
		}
	}
	return append(all, Leaving{Address: b.Address, Protocol: b.Protocol, Down: true})
}

func sortLeaving(all []Leaving) {
	slices.SortFunc(all, func(a, b Leaving) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
}
