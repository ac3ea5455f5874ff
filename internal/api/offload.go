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
	// Threshold is the number of packets of one direction after which it is a candidate.
	Threshold uint32 `json:"threshold"`
	// Entries are those of the flow cache, two for each flow, of at most Limit.
	Entries int    `json:"entries"`
	Limit   uint32 `json:"limit"`
	// Learned counts entries since the agent started, Ended those that are gone, by the reason: closed, conntrack,
	// route, changed or idle.
	Learned uint64            `json:"learned"`
	Ended   map[string]uint64 `json:"ended,omitempty"`
	// Refused are the directions of flows that stay on the stack, by the reason.
	Refused map[string]int `json:"refused,omitempty"`
	// Flowtable is the state of the kernel's flowtable; nil if the provider is another.
	Flowtable *Flowtable `json:"flowtable,omitempty"`
	// Filters are the rules of packet filters that would be bypassed: flows that they concern stay on the stack.
	Filters []string `json:"filters,omitempty"`
	// Packets are the packets since the tables were made, by their path; Bytes those of the flow cache.
	Packets map[string]uint64 `json:"packets,omitempty"`
	Bytes   uint64            `json:"bytes"`
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
	for _, n := range s.Refused {
		refused += n
	}
	text := fmt.Sprintf("%s at %s", s.Provider, strings.Join(names, ", "))
	if s.Provider == offloadCache {
		text += fmt.Sprintf("; %s", plural.Of(s.Entries, "entry"))
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
	// Hardware and Software are the devices in the flowtables. A device in the first is in the second, too.
	Hardware, Software []string
	// Refused are the devices that are in no flowtable, RefusedHardware those of them that are in none of the
	// hardware, with the reason.
	Refused, RefusedHardware map[string]string
	// Accounting: nf_conntrack_acct was off, and is on now, because the threshold needs the packets of a flow.
	// Flows that were there before are not counted, and not taken.
	Accounting bool
}

// A Status is what `beeline offload status` shows of the flowtable.
type Flowtable struct {
	FlowtableReport
	// NextHops is the number of valid next hops by the devices.
	NextHops int
	// Replaced is how often all flows returned to the stack, by the reason; Last is the last time.
	Replaced map[string]uint64
	Last     time.Time
}
