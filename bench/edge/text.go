// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"cmp"
	"slices"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
)

func printEdge(r *harness.Report) {
	r.Say("\nTime of the edge's programs for one packet, in ns net of what drives them; beside it the least that a load balancer does\n")
	r.Say("  %-10s %-4s  %-28s %8s %8s %15s %8s %6s", "", "", "", "flows", "median", "least - most", "minimal", "ratio")
	for _, row := range rows(r.Results) {
		net, minimal := stat.Median(row.Samples), stat.Median(r.Results.Counterpart(row))
		r.Say("  %-10s %-4s  %-28s %8d %8.0f %6.0f - %6.0f %8.0f %6.1f", row.Hook, row.Family, row.Scenario, row.Parameters["flows"],
			net, stat.Quantile(row.Samples, 0), stat.Quantile(row.Samples, 1), minimal, net/minimal)
	}
}

// rows are Beeline's, by hook, family and case, each followed by the peers'.
func rows(results *result.File) []result.Row {
	all := slices.DeleteFunc(results.Of(PartName, metricPacket), func(r result.Row) bool { return r.Side == sideMinimal })
	cases := map[string]int{}
	for i, c := range slices.Concat(edgeCases, directCases) {
		if _, known := cases[c.name]; !known {
			cases[c.name] = i
		}
	}
	place := func(r result.Row) int {
		if place, known := cases[r.Scenario]; known {
			return place
		}
		return len(edgeCases) + len(directCases)
	}
	hooks := []string{hookXDP, hookIngress, hookEgress, hookTC}
	slices.SortStableFunc(all, func(a, b result.Row) int {
		return cmp.Or(slices.Index(hooks, a.Hook)-slices.Index(hooks, b.Hook), cmp.Compare(a.Family, b.Family), place(a)-place(b))
	})
	return all
}
