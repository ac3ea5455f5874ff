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

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/xdpdispatch"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/report/condition"
)

// Status is the status of the edge.
type Status struct {
	// Mode is the configured mode; empty: only the agent knows.
	Mode    Mode           `json:"mode,omitempty"`
	Devices []DeviceStatus `json:"devices"`
	// Problems are the conditions that are not of one device.
	Problems condition.List `json:"-"`
	// Counters of packets by reason (bpf.ReadEdgeCounters).
	Counters map[string]uint64 `json:"counters,omitempty"`
	Flows    conntrack.Status  `json:"flows,omitzero"`
	// DSR is the size of clients' packets that fit, for each kind and family in use.
	DSR []DSRStatus `json:"dsr,omitempty"`
}

// DeviceStatus is the status of the edge at one device.
type DeviceStatus struct {
	Name  string `json:"name"`
	Index int    `json:"index"`
	Mode  string `json:"mode"` // xdp, generic xdp, tc or none
	// Role is what is behind the device: clients, backends, clients and backends, or only pods of this
	// node; flows means that the edge is attached only for existing ones. Empty: only the agent knows.
	Role string `json:"role,omitempty"`
	Why  string `json:"why,omitempty"`
	// Chain are the XDP programs that share the device with Beeline's, which is one
	// of them, in the order in which they run.
	Chain []xdpdispatch.ChainProgram `json:"chain,omitempty"`
	// Refused: clients are not served, or not in the mode that was requested.
	Refused bool `json:"refused,omitempty"`
	// Lost is how many packets sent by XDP the driver has dropped since the edge was attached, by the
	// driver's own count, if that has grown in the last ten minutes.
	Lost uint64 `json:"lost,omitempty"`
}

// CompleteStatus adds what only the agent knows to the status read from the pins; s is nil if there are no
// pins.
func (e *Edge) CompleteStatus(s *Status) *Status {
	if s == nil {
		s = &Status{}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s.Mode, s.Devices, s.Problems = e.config.Mode, []DeviceStatus{}, slices.Clone(e.problems)
	s.Problems = append(s.Problems, e.bypassed...)
	s.Problems = append(s.Problems, e.routed...)
	s.Problems = append(s.Problems, e.drops.conditions...)
	s.DSR = slices.Clone(e.dsr)
	now := time.Now()
	e.countLosses(now)
	if s.Counters != nil {
		e.withheldDrops.Note(s.Counters[droppedForXFRM], now)
		e.noteForwardingDrops(s.Counters[droppedForForwarding], now)
	}
	s.Problems = append(s.Problems, e.forwardingProblems(e.forwardsNow(now))...)
	s.Problems = append(s.Problems, e.withheldNow(now)...)
	for _, a := range e.devices {
		device := a.status()
		device.Lost = a.losses.shown(now)
		s.Devices = append(s.Devices, device)
	}
	slices.SortFunc(s.Devices, func(a, b DeviceStatus) int { return cmp.Compare(a.Name, b.Name) })
	return s
}

// Modes counts the devices by DeviceStatus.Mode.
func (e *Edge) Modes() map[string]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	modes := map[string]int{}
	for _, a := range e.devices {
		modes[a.status().Mode]++
	}
	return modes
}

// What is behind a device.
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
	case d.Draining:
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

// A FlowCount counts conntrack entries (conntrack.Count).
type FlowCount func(*conntrack.Tables) (conntrack.Status, error)

// ReadStatus reads the status from the pins of a bpffs directory; nil if there is no edge.
func ReadStatus(bpffs string, count FlowCount) (*Status, error) {
	flows, err := conntrack.Open(bpffs)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := &Status{Devices: []DeviceStatus{}}
	if s.Flows, err = count(flows); err != nil {
		return nil, err
	}
	if s.Counters, err = bpf.ReadEdgeCounters(bpffs); errors.Is(err, bpf.ErrOtherCounters) {
		s.Problems = append(s.Problems, condition.CountersUnreadable.New("the attached programs belong to another version of Beeline, with other reasons"))
	} else if err != nil {
		return nil, err
	}
	attached, err := bpf.EdgeAttachments(bpffs)
	if err != nil {
		return nil, err
	}
	elsewhere, err := bpf.OtherNamespace(bpffs)
	if err != nil {
		return nil, err
	}
	name := deviceName
	if elsewhere { // an index is another device here
		name = func(index int) string { return fmt.Sprintf("(index %d)", index) }
	}
	byIndex := map[int]int{} // place in Devices
	for _, a := range attached {
		if a.Detached {
			continue
		}
		if _, known := byIndex[a.Device]; !known {
			byIndex[a.Device] = len(s.Devices)
			s.Devices = append(s.Devices, DeviceStatus{Name: name(a.Device), Index: a.Device, Mode: "tc"})
		}
		if a.Hook == bpf.EdgeXDP {
			device := &s.Devices[byIndex[a.Device]]
			device.Mode, device.Chain, device.Why = "xdp", a.Chain, strings.TrimPrefix(chainText(a.Chain), "; ")
			if !elsewhere {
				device.Mode = xdpName(bpf.XDPModeOf(a.Device))
			}
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

// Conditions returns the conditions of the edge.
func (s *Status) Conditions() condition.List {
	all := slices.Clone(s.Problems)
	for i := range s.Devices {
		d := &s.Devices[i]
		if c, lost := d.lost(); lost {
			all = append(all, c)
		}
		if c, refused := d.refused(s.Mode); refused {
			all = append(all, c)
		}
	}
	return append(all, s.Flows.Conditions()...)
}

// refused returns the condition of a device that is not served, or not in the mode that was requested.
func (d *DeviceStatus) refused(mode Mode) (condition.Condition, bool) {
	without := map[string]string{
		backendsRole: "replies of backends behind device %s do not reach external clients: %s",
		podsRole:     "pods behind device %s may not reach Services at the node's own addresses: %s",
		flowsRole:    "connections of clients and pods behind device %s may be cut: %s",
	}
	c := condition.DeviceModeRefused.New("device %s is served by %s and not by what --edge-mode=%s asks for: %s", d.Name, d.Mode, mode, d.Why)
	switch {
	case d.Mode == "none":
		c = condition.DeviceNotServed.New(cmp.Or(without[d.Role], "clients behind device %s are not served: %s"), d.Name, d.Why)
	case d.Mode != "tc":
		c = condition.DeviceModeRefused.New("device %s is served by %s, though not as --edge-xdp-dispatcher asks for: %s", d.Name, d.Mode, d.Why).
			Do("see the reason in the message, or start the agent without --edge-xdp-dispatcher")
	}
	return c.At(d.Name), d.Refused || d.Mode == "none"
}
