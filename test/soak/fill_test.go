// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"slices"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/tables/reconcile"
)

// full is the part of a table from which on most of its sets are full, so that new entries evict others.
const full = 0.9

// fill is the highest fill of the tables that clients and floods fill, by name.
type fill map[string]reconcile.Usage

// note reads the tables' fill from the agent's status.
func (f fill) note(s *api.Status) {
	all := s.Tables
	if s.Edge != nil {
		flows := s.Edge.Conntrack
		all = append(slices.Clone(all), reconcile.Usage{Table: "conntrack", Used: uint32(flows.Entries), Limit: flows.Limit},
			reconcile.Usage{Table: "unreplied", Used: uint32(flows.HalfOpen), Limit: flows.HalfOpenLimit})
	}
	for _, u := range all {
		if taken(u) >= taken(f[u.Table]) {
			f[u.Table] = u
		}
	}
}

func taken(u reconcile.Usage) float64 { return float64(u.Used) / max(1, float64(u.Limit)) }

// sumFill prints how full the tables were, and fails if floods and clients did not fill those that programs write:
// that nothing was lost would say little. The floods of the short form are too short for all of them.
func (w *world) sumFill() {
	const sureToFlood = 10 * time.Minute
	for name, must := range map[string]bool{"conntrack": true, "affinity": true, "unreplied": *lastingFlag >= sureToFlood} {
		u := w.fill[name]
		w.logf("%-32s %9d of %d places taken at most", name, u.Used, u.Limit)
		if must && *onlyFlag == "" && taken(u) < full {
			w.t.Errorf("table %s was never full: at most %d of %d places were taken", name, u.Used, u.Limit)
		}
	}
}
