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

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/report/condition"
)

// CompleteStatus adds what only the agent knows to the status read from the pins; s is nil if there are no
// pins.
func (e *Edge) CompleteStatus(s *api.Edge) *api.Edge {
	if s == nil {
		s = &api.Edge{}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s.Mode, s.Devices, s.Problems = string(e.config.Mode), []api.EdgeDevice{}, slices.Clone(e.problems)
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
		device.DroppedByDriver = a.losses.shown(now)
		s.Devices = append(s.Devices, device)
	}
	slices.SortFunc(s.Devices, func(a, b api.EdgeDevice) int { return cmp.Compare(a.Name, b.Name) })
	return s
}

// Modes counts the devices by api.EdgeDevice.Mode.
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

func (a *attached) status() api.EdgeDevice {
	s := api.EdgeDevice{Name: a.Name, Index: a.Index, Mode: a.entry.mode, Role: a.role(), Why: a.entry.why, XDPChain: a.chain, ModeRefused: a.entry.refused}
	if a.failed != nil {
		s.Mode, s.Why, s.ModeRefused = "none", a.failed.Error(), true
	}
	return s
}

// readPins adds the edge of a bpffs directory to a status, if there is one.
func readPins(bpffs string, s *api.Status, count bool) (err error) {
	if s.Edge, err = readStatus(bpffs, count); s.Edge != nil {
		s.ComponentConditions = append(s.ComponentConditions, Conditions(s.Edge)...)
	}
	return err
}

// readStatus reads the status from the pins of a bpffs directory; nil if there is no edge.
func readStatus(bpffs string, count bool) (*api.Edge, error) {
	flows, err := conntrack.Open(bpffs)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := &api.Edge{Devices: []api.EdgeDevice{}}
	if count {
		if s.Conntrack, err = conntrack.Count(flows); err != nil {
			return nil, err
		}
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
			s.Devices = append(s.Devices, api.EdgeDevice{Name: name(a.Device), Index: a.Device, Mode: "tc"})
		}
		if a.Hook == bpf.EdgeXDP {
			device := &s.Devices[byIndex[a.Device]]
			device.Mode, device.XDPChain, device.Why = "xdp", a.Chain, strings.TrimPrefix(chainText(a.Chain), "; ")
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
func Conditions(s *api.Edge) condition.List {
	all := slices.Clone(s.Problems)
	for i := range s.Devices {
		d := &s.Devices[i]
		if c, lost := lost(d); lost {
			all = append(all, c)
		}
		if c, refused := refused(d, s.Mode); refused {
			all = append(all, c)
		}
	}
	return append(all, s.Conntrack.Conditions()...)
}

// refused returns the condition of a device that is not served, or not in the mode that was requested.
func refused(d *api.EdgeDevice, mode string) (condition.Condition, bool) {
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
	return c.At(d.Name), d.ModeRefused || d.Mode == "none"
}
