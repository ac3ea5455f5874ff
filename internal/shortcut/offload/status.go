// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"maps"
	"slices"

	"beeline.io/beeline/internal/api"
)

// Status is the state of flow offload.
type Status = api.Offload

// Status returns the state, without the counters of packets.
func (o *Offload) Status() Status {
	o.mu.Lock()
	s := Status{Provider: string(o.provider), Why: o.why, Devices: slices.Clone(o.devices), ThresholdPackets: o.config.Threshold}
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
	s.PacketFilters = o.rules.findings()
	return s
}

func (f *FlowCache) addTo(s *Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.CacheEntries, s.CacheLimit, s.LearnedEntries, s.EndedEntries = len(f.cache.places), f.cache.max(), f.learned, maps.Clone(f.ended)
	s.RefusedDirections = map[string]int{}
	for _, why := range f.refused {
		s.RefusedDirections[why.reason]++
	}
}
