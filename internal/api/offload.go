// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"strings"
	"time"

	"beeline.io/beeline/internal/util/plural"
)

// offloadCache is the provider that has entries of its own.
const offloadCache = "cache"

// Offload is the state of flow offload.
type Offload struct {
	// Provider is what forwards the flows: cache, flowtable or flowtable-hardware; empty: nothing does. Why says
	// why it was chosen, or why there is none.
	Provider string          `json:"provider"`
	Why      string          `json:"why,omitempty"`
	Devices  []OffloadDevice `json:"devices"`
	// ThresholdPackets is the number of packets of one direction after which it is a candidate.
	ThresholdPackets uint32 `json:"thresholdPackets"`
	// CacheEntries are the entries of the flow cache, two for each flow, of at most CacheLimit.
	CacheEntries int    `json:"cacheEntries"`
	CacheLimit   uint32 `json:"cacheLimit"`
	// LearnedEntries counts entries since the agent started, EndedEntries those that are gone, by the reason:
	// closed, conntrack, route, changed or idle.
	LearnedEntries uint64            `json:"learnedEntries"`
	EndedEntries   map[string]uint64 `json:"endedEntries,omitempty"`
	// RefusedDirections are the directions of flows that stay on the stack, by the reason.
	RefusedDirections map[string]int `json:"refusedDirections,omitempty"`
	// Flowtable is the state of the kernel's flowtable; nil if the provider is another.
	Flowtable *Flowtable `json:"flowtable,omitempty"`
	// PacketFilters are the rules that would be bypassed: flows that they concern stay on the stack.
	PacketFilters []string `json:"packetFilters,omitempty"`
	// Packets are the packets since the tables were made, by their path; CacheBytes those of the flow cache.
	Packets    map[string]uint64 `json:"packets,omitempty"`
	CacheBytes uint64            `json:"cacheBytes"`
}

// OffloadDevice is a device of flow offload.
type OffloadDevice struct {
	Index int    `json:"index"`
	Name  string `json:"name"`
	// Group is its device group. Rules may decide by it, so flows are learned anew when it changes.
	Group uint32 `json:"group,omitempty"`
	// Bridge: it is a bridge.
	Bridge bool `json:"bridge,omitempty"`
	// Master is its bridge, bond or VRF; empty: none.
	Master       string `json:"master,omitempty"`
	MasterIndex  int    `json:"masterIndex,omitempty"`
	MasterBridge bool   `json:"masterBridge,omitempty"`
}

// Line returns the state in one line.
func (s *Offload) Line() string {
	if s.Provider == "" {
		return "off: " + s.Why
	}
	var names []string
	for _, d := range s.Devices {
		names = append(names, d.Name)
	}
	refused := 0
	for _, n := range s.RefusedDirections {
		refused += n
	}
	text := fmt.Sprintf("%s at %s", s.Provider, strings.Join(names, ", "))
	if s.Provider == offloadCache {
		text += fmt.Sprintf("; %s", plural.Of(s.CacheEntries, "entry"))
	}
	if len(names) == 0 {
		text = s.Provider + ", at no device"
	}
	if refused > 0 {
		text += fmt.Sprintf("; %d refused", refused)
	}
	return text
}

// A FlowtableReport says what Apply did.
type FlowtableReport struct {
	// HardwareDevices are the devices in a flowtable of the hardware. They are in SoftwareDevices, too.
	HardwareDevices []string `json:"hardwareDevices"`
	SoftwareDevices []string `json:"softwareDevices"`
	// RefusedDevices are the devices that are in no flowtable, with the reason.
	RefusedDevices map[string]string `json:"refusedDevices"`
	// RefusedHardwareDevices are the devices of SoftwareDevices that are not in HardwareDevices, with the reason.
	RefusedHardwareDevices map[string]string `json:"refusedHardwareDevices"`
	// AccountingEnabled: nf_conntrack_acct was off, and is on now, because the threshold needs the packets of a
	// flow. Flows that were there before are not counted, and not taken.
	AccountingEnabled bool `json:"accountingEnabled"`
}

// Flowtable is the state of the kernel's flowtable.
type Flowtable struct {
	FlowtableReport
	// NextHops is the number of valid next hops by the devices.
	NextHops int `json:"nextHops"`
	// Replaced is how often all flows returned to the stack, by the reason.
	Replaced map[string]uint64 `json:"replaced"`
	// LastReplaced is when they last did.
	LastReplaced time.Time `json:"lastReplaced,omitzero"`
}
