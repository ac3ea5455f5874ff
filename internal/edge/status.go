// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"beeline.io/beeline/internal/datapath"
)

// Status is how the edge is.
type Status struct {
	// Mode is what was asked for; empty: only the agent knows.
	Mode     Mode           `json:"mode,omitempty"`
	Devices  []DeviceStatus `json:"devices"`
	Problems []string       `json:"problems,omitempty"`
	// Counters of packets by reason (datapath.ReadEdgeCounters).
	Counters map[string]uint64 `json:"counters,omitempty"`
	Flows    FlowStatus        `json:"flows,omitzero"`
	// DSR says which packets of clients fit, for each kind and family in use.
	DSR []DSRStatus `json:"dsr,omitempty"`
}

// DeviceStatus is how the edge is at one device.
type DeviceStatus struct {
	Name  string `json:"name"`
	Index int    `json:"index"`
	Mode  string `json:"mode"` // xdp, generic xdp, tc or none
	// Role is who is behind it: clients, backends, clients and backends, or pods of this
	// node alone; or flows, if it is there for those that go on and for nobody else.
	// Empty: only the agent knows.
	Role string `json:"role,omitempty"`
	Why  string `json:"why,omitempty"`
	// Chain are the XDP programs that share the device with Beeline's, which is one
	// of them, in the order in which they run.
	Chain []datapath.ChainProgram `json:"chain,omitempty"`
	// Refused: clients are not served, or not in the way that was asked for.
	Refused bool `json:"refused,omitempty"`
	// Lost is how many packets that XDP sent the driver has lost since the edge came, by its
	// own count, if that has grown in the last ten minutes.
	Lost uint64 `json:"lost,omitempty"`
}

// FlowStatus is how many flows there are. Each has two records.
type FlowStatus struct {
	Records       int       `json:"records"`
	Limit         uint32    `json:"limit"`
	HalfOpen      int       `json:"halfOpen"` // records of flows of which one side has been heard
	HalfOpenLimit uint32    `json:"halfOpenLimit"`
	LastSweep     time.Time `json:"lastSweep,omitzero"`
	SweepSeconds  float64   `json:"sweepSeconds,omitempty"`
	Expired       uint64    `json:"expired"` // flows whose time had come, since the start
	Ended         uint64    `json:"ended"`   // UDP flows whose backend had left, since the start
}

// Complete adds to what the pins tell what only the agent knows; s is nil if there
// are none.
func (e *Edge) Complete(s *Status) *Status {
	if e == nil {
		return &Status{Mode: Off, Devices: []DeviceStatus{}}
	}
	if s == nil {
		s = &Status{}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s.Mode, s.Devices, s.Problems = e.config.Mode, []DeviceStatus{}, slices.Clone(e.problems)
	s.Problems = append(s.Problems, e.forwardingProblems(e.forwards)...)
	s.DSR = slices.Clone(e.dsr)
	s.Flows.LastSweep, s.Flows.SweepSeconds = e.sweeps.last, e.sweeps.took.Seconds()
	s.Flows.Expired, s.Flows.Ended = e.sweeps.expired, e.sweeps.ended
	if e.sweeps.err != nil {
		s.Problems = append(s.Problems, "flows that are over may be remembered longer than they should: "+e.sweeps.err.Error())
	}
	now := time.Now()
	e.countLosses(now)
	if s.Counters != nil {
		e.shortage.note(s.Counters, now)
	}
	if p := e.shortage.problem(now); p != "" {
		s.Problems = append(s.Problems, p)
	}
	for _, a := range e.devices {
		device := a.status()
		device.Lost = a.losses.shown(now)
		s.Devices = append(s.Devices, device)
	}
	slices.SortFunc(s.Devices, func(a, b DeviceStatus) int { return cmp.Compare(a.Name, b.Name) })
	return s
}

// What may be behind a device.
const (
	clientsRole  = "clients"
	backendsRole = "backends"
	bothRole     = "clients and backends"
	podsRole     = "pods"
	flowsRole    = "flows"
)

func (d *Device) role() string {
	switch {
	case d.Clients && d.Backends:
		return bothRole
	case d.Backends:
		return backendsRole
	case d.Lingers:
		return flowsRole
	case d.onlyPods():
		return podsRole
	}
	return clientsRole
}

func (a *attached) status() DeviceStatus {
	s := DeviceStatus{Name: a.Name, Index: a.Index, Mode: a.entry.mode, Role: a.role(), Why: a.entry.why, Chain: a.chain, Refused: a.entry.refused}
	if a.failed != nil {
		s.Mode, s.Why, s.Refused = "none", a.failed.Error(), true
	}
	return s
}

// CountFlows counts the records.
func CountFlows(flows *datapath.Flows) (s FlowStatus, err error) {
	s.Limit, s.HalfOpenLimit = flows.Tracks.Max(), flows.HalfOpen.Max()
	count := func(n *int) func(datapath.Tuple, *datapath.Track) bool {
		return func(datapath.Tuple, *datapath.Track) bool { *n++; return true }
	}
	if err := flows.Tracks.Walk(count(&s.Records)); err != nil {
		return s, err
	}
	return s, flows.HalfOpen.Walk(count(&s.HalfOpen))
}

// ReadStatus reads what the pins of a bpffs directory tell; nil if there is no edge.
func ReadStatus(bpffs string) (*Status, error) {
	flows, err := datapath.OpenFlows(bpffs)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := &Status{Devices: []DeviceStatus{}}
	if s.Flows, err = CountFlows(flows); err != nil {
		return nil, err
	}
	if s.Counters, err = datapath.ReadEdgeCounters(bpffs); errors.Is(err, datapath.ErrOtherCounters) {
		s.Problems = append(s.Problems, err.Error())
	} else if err != nil {
		return nil, err
	}
	attached, err := datapath.EdgeAttachments(bpffs)
	if err != nil {
		return nil, err
	}
	byIndex := map[int]int{} // place in Devices
	for _, a := range attached {
		if a.Detached {
			continue
		}
		if _, known := byIndex[a.Device]; !known {
			byIndex[a.Device] = len(s.Devices)
			s.Devices = append(s.Devices, DeviceStatus{Name: deviceName(a.Device), Index: a.Device, Mode: "tc"})
		}
		if a.Hook == datapath.EdgeXDP {
			device := &s.Devices[byIndex[a.Device]]
			device.Mode, device.Chain, device.Why = "xdp", a.Chain, strings.TrimPrefix(chainText(a.Chain), "; ")
		}
	}
	return s, nil
}

func deviceName(index int) string {
	if device, err := net.InterfaceByIndex(index); err == nil {
		return device.Name
	}
	return fmt.Sprintf("(index %d)", index)
}

// nearlyFull is when flows that are in use may soon make room for others.
const nearlyFull = 0.9

// Complaints are the reasons why not all is well with the edge.
func (s *Status) Complaints() (all []string) {
	for _, p := range s.Problems {
		all = append(all, "the edge: "+p)
	}
	for _, d := range s.Devices {
		if lost := d.lossComplaint(); lost != "" {
			all = append(all, lost)
		}
		switch {
		case d.Mode == "none" && d.Role == backendsRole:
			all = append(all, fmt.Sprintf("answers of backends behind device %s do not reach clients from outside: %s", d.Name, d.Why))
		case d.Mode == "none" && d.Role == podsRole:
			all = append(all, fmt.Sprintf("pods behind device %s may not reach Services at the node's own addresses: %s", d.Name, d.Why))
		case d.Mode == "none" && d.Role == flowsRole:
			all = append(all, fmt.Sprintf("connections of clients and pods behind device %s may be cut: %s", d.Name, d.Why))
		case d.Mode == "none":
			all = append(all, fmt.Sprintf("clients behind device %s are not served: %s", d.Name, d.Why))
		case d.Refused && d.Mode != "tc":
			all = append(all, fmt.Sprintf("device %s is served by %s, though not as --edge-xdp-dispatcher asks for: %s", d.Name, d.Mode, d.Why))
		case d.Refused:
			all = append(all, fmt.Sprintf("device %s is served by %s and not by what --edge-mode=%s asks for: %s", d.Name, d.Mode, s.Mode, d.Why))
		}
	}
	if float64(s.Flows.Records) > nearlyFull*float64(s.Flows.Limit) && s.Flows.Limit > 0 {
		all = append(all, fmt.Sprintf("clients' flows are nearly as many as fit (%d of %d records), and the longest unused make room: raise --max-flows", s.Flows.Records, s.Flows.Limit))
	}
	return all
}
