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

	"beeline.io/beeline/internal/edge"
	"beeline.io/beeline/internal/observe"
)

// statusEdge says how clients outside of the cluster are served.
func statusEdge(w io.Writer, s *observe.Status) {
	e := s.Edge
	if e == nil {
		return
	}
	fmt.Fprintln(w, "\nDevices, and who is behind them:")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, d := range e.Devices {
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", d.Name, d.Mode, cmp.Or(d.Role, "-"), d.Why)
	}
	t.Flush()
	switch {
	case e.Mode == edge.Off:
		fmt.Fprintln(w, "  none (--edge-mode=off)")
		return
	case len(e.Devices) == 0:
		fmt.Fprintln(w, "  none: no device has a default route or an address of the Node, or matches --devices")
	}
	for _, d := range e.DSR {
		fmt.Fprintln(w, d)
	}
	fmt.Fprintf(w, "Flows: %d records of %d (--max-flows), %d of %d half open", e.Flows.Records, e.Flows.Limit, e.Flows.HalfOpen, e.Flows.HalfOpenLimit)
	if s.Answered {
		fmt.Fprintf(w, "; last sweep %s; %d flows over, %d ended whose backend had left", ago(e.Flows.LastSweep), e.Flows.Expired, e.Flows.Ended)
	}
	fmt.Fprintln(w)
	if e.Counters != nil {
		fmt.Fprintf(w, "Packets: %s\n", edgeCounters(e.Counters))
	}
}

// edgeCounters names what has been counted, in the order of names.
func edgeCounters(counters map[string]uint64) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(counters)) {
		if n := counters[name]; n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, strings.ReplaceAll(name, "_", " ")))
		}
	}
	if len(words) == 0 {
		return "none yet"
	}
	return strings.Join(words, ", ")
}
