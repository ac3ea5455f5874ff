// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"beeline.io/beeline/internal/shortcut/offload/flowtable"
	"beeline.io/beeline/internal/util/plural"
)

// Status is the state of flow offload.
type Status struct {
	// Provider is what forwards the flows: cache, flowtable or flowtable-hardware; empty: nothing does. Why says
	// why it was chosen, or why there is none.
	Provider string   `json:"provider"`
	Why      string   `json:"why,omitempty"`
	Devices  []Device `json:"devices"`
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
	Flowtable *flowtable.Status `json:"flowtable,omitempty"`
	// Filters are the rules of packet filters that would be bypassed: flows that they concern stay on the stack.
	Filters []string `json:"filters,omitempty"`
	// Packets are the packets since the tables were made, by their path; Bytes those of the flow cache.
	Packets map[string]uint64 `json:"packets,omitempty"`
	Bytes   uint64            `json:"bytes"`
}

// Status returns the state, without the counters of packets.
func (o *Offload) Status() Status {
	o.mu.Lock()
	s := Status{Provider: string(o.provider), Why: o.why, Devices: slices.Clone(o.devices), Threshold: o.config.Threshold}
	if !o.chosen {
		s.Why = "a provider is being chosen"
	}
	o.mu.Unlock()
	if o.flows != nil {
		o.flows.addTo(&s)
	}
	if s.Provider != string(Cache) && s.Provider != "" {
		t := o.flowtable.Status()
		s.Flowtable = &t
	}
	s.Filters = o.rules.findings()
	return s
}

func (f *Flows) addTo(s *Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.Entries, s.Limit, s.Learned, s.Ended = len(f.cache.places), f.cache.max(), f.learned, maps.Clone(f.ended)
	s.Refused = map[string]int{}
	for _, why := range f.refused {
		s.Refused[why.reason]++
	}
}

// Line returns the state in one line.
func (s *Status) Line() string {
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
	if s.Provider == string(Cache) {
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
