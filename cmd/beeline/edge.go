// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/util/plural"
)

// statusEdge prints the state of the edge.
func statusEdge(w io.Writer, s *api.Status) {
	e := s.Edge
	if e == nil {
		return
	}
	fmt.Fprintln(w, "\nDevices, and what they lead to:")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, d := range e.Devices {
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", d.Name, d.Mode, cmp.Or(d.Role, "-"), d.Why)
	}
	t.Flush()
	switch {
	case e.Mode == api.EdgeOff:
		fmt.Fprintln(w, "  none (--edge-mode=off)")
		return
	case len(e.Devices) == 0:
		fmt.Fprintln(w, "  none: no device has a default route or an address of the Node, or matches --devices")
	}
	for _, d := range e.DSR {
		fmt.Fprintln(w, d)
	}
	fmt.Fprintf(w, "Flows: %s in %d places (twice --max-flows), %d of closed connections, %d in %d places half open", plural.Of(e.Conntrack.Entries, "conntrack entry"), e.Conntrack.Limit, e.Conntrack.Evictable, e.Conntrack.HalfOpen, e.Conntrack.HalfOpenLimit)
	if s.Answered {
		fmt.Fprintf(w, "; last GC pass %s; %s expired, %d ended because their backend was removed", ago(e.Conntrack.LastGC), plural.Of(e.Conntrack.ExpiredFlows, "flow"), e.Conntrack.EndedUDPFlows)
	}
	fmt.Fprintln(w)
	if e.Counters != nil {
		fmt.Fprintf(w, "Packets: %s\n", edgeCounters(e.Counters))
	}
}

// edgeCounters lists the nonzero counters, sorted by name.
func edgeCounters(counters map[string]uint64) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(counters)) {
		if n := counters[name]; n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, name))
		}
	}
	if len(words) == 0 {
		return "none yet"
	}
	return strings.Join(words, ", ")
}
