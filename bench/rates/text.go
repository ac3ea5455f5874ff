// SPDX-License-Identifier: Apache-2.0

package rates

import (
	"fmt"
	"strings"

	"beeline.io/beeline/bench/forward"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/stat"
)

// A goal is a ratio of two sides' CPU time for a packet. 0 is no bound.
type goal struct {
	side, by    string
	least, most float64
}

var goals = []goal{
	{forward.SideXDPSNAT, forward.SideMinimalXDP, 0, 1.25},
	{forward.SideMinimalRecords, forward.SideMinimalXDP, 0, 0},
	{forward.SideXDPSNAT, forward.SideMinimalRecords, 0, 0},
	{forward.SideXDPDSR, forward.SideMinimalXDP, 0, 1.25},
	{forward.SideMinimalTunnel, forward.SideMinimalXDP, 0, 0},
	{forward.SideXDPDSR, forward.SideMinimalTunnel, 0, 0},
	{forward.SideTCSNAT, forward.SideMinimalTC, 0, 1.2},
	{forward.SideTCChecksum, forward.SideMinimalTC, 0, 0},
	{forward.SideTCSNAT, forward.SideTCChecksum, 0, 0},
	{forward.SideTCDSR, forward.SideMinimalTC, 0, 1.2},
	{forward.SideTCTunnel, forward.SideMinimalTC, 0, 0},
	{forward.SideTCDSR, forward.SideTCTunnel, 0, 0},
	{forward.SideIPTables, forward.SideXDPSNAT, 4.2, 0},
	{forward.SideOldIPTables, forward.SideXDPSNAT, 4.2, 0},
	{forward.SideNFT, forward.SideXDPSNAT, 0, 0},
	{forward.SideTCSNAT, forward.SideXDPSNAT, 0, 0},
	{forward.SideIPTables, forward.SideTCSNAT, 0, 0},
}

// verdict is the goal, and whether it is kept: by the whole interval, or undecided.
func (g goal) verdict(ratio stat.Interval) string {
	word := func(kept, missed bool) string {
		switch {
		case ratio.Confidence >= 0.95 && kept:
			return "kept"
		case ratio.Confidence >= 0.95 && missed:
			return "missed"
		}
		return "not decided"
	}
	switch {
	case g.most > 0:
		return fmt.Sprintf("at most %g: %s", g.most, word(ratio.High <= g.most, ratio.Low > g.most))
	case g.least > 0:
		return fmt.Sprintf("at least %g: %s", g.least, word(ratio.Low >= g.least, ratio.High < g.least))
	}
	return ""
}

func printRates(r *harness.Report) {
	rows := r.Results.Of(partName, harness.MetricPacketCPU)
	cpus := forward.CPUs(r.Results.Settings.Two)
	r.Say("\n%d flows of UDP over IPv4, both ways known; the balancer on CPU %d, client and receiver on CPU %d; medians of %d rounds", forward.Flows, cpus.Server, cpus.Client, len(rows[0].Samples))
	r.Say("CPU time of the balancer for a packet and what a core takes; at rates that are offered, its share of the core (packets that pass, in millions per second)\n")
	line := fmt.Sprintf("  %-42s %6s %15s %6s ", "", "ns", "least - most", "Mpps")
	for _, rate := range offers {
		line += fmt.Sprintf(" %9.4g Mpps", float64(rate)/1e6)
	}
	r.Say("%s", line)
	proxies, ipvs := false, false
	for _, row := range rows {
		median := stat.Median(row.Samples)
		line := fmt.Sprintf("  %-42s %6.0f %6.0f - %6.0f %6.2f ", row.Side, median, stat.Quantile(row.Samples, 0), stat.Quantile(row.Samples, 1), 1e3/median)
		for _, rate := range offers {
			series := Series(row.Side, rate)
			line += fmt.Sprintf(" %5.0f %% (%.2f)", 100*stat.Median(r.Results.Samples(series, MetricShare)), stat.Median(r.Results.Samples(series, MetricPassed))/1e6)
		}
		r.Say("%s", line)
		proxies = proxies || strings.HasPrefix(row.Side, harness.ProxySides)
		ipvs = ipvs || row.Side == forward.SideIPVSNAT
	}
	if !proxies {
		r.Say("  There was no Kubernetes to run at --controlplane, so kube-proxy is left out.")
	}
	if !ipvs {
		r.Say("  This kernel has no IPVS, or its module ip_vs is not loaded, so IPVS is left out; the part instructions has it.")
	}
	r.Say("\nRatios of CPU time for a packet, round by round [95 %% interval]")
	compare := func(g goal) {
		of := func(side string) []float64 { return r.Results.Samples(Series(side, 0), harness.MetricPacketCPU) }
		if len(of(g.side)) == 0 || len(of(g.by)) == 0 {
			return // excluded by --case
		}
		ratio := stat.MedianInterval(stat.Ratios(of(g.side), of(g.by)))
		r.Say("  %-42s by %-22s %-24s %s", g.side, g.by, ratio, g.verdict(ratio))
	}
	for _, g := range goals {
		compare(g)
	}
	for _, row := range rows {
		if strings.HasPrefix(row.Side, harness.ProxySides) || strings.HasPrefix(row.Side, forward.SidesOfIPVS) {
			compare(goal{side: row.Side, by: forward.SideXDPSNAT})
		}
	}
}
