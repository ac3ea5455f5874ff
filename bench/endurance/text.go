// SPDX-License-Identifier: Apache-2.0

package endurance

import (
	"fmt"
	"strings"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
)

// printEndurance prints a line for each kind of clients, side by side by the size of the table.
func printEndurance(r *harness.Report) {
	rows := r.Results.Of(PartName, metricAsked)
	proxies, last := false, ""
	for _, row := range rows {
		records, has := row.Parameters["records"]
		title := row.Side
		if has {
			title = fmt.Sprintf("%s, %d records", row.Side, records)
		}
		if title != last {
			last = title
			r.Say("\n%-76s %9s %9s %9s %9s %9s %9s %9s %10s %10s %6s", title, "asked", "failed", "refused", "reset", "timed out", "wrong", "delayed", "per second", "p99 ms", "CPUs")
		}
		proxies = proxies || row.Side == sideProxy
		count := func(m result.Metric) string {
			if all := r.Results.Samples(row.Series, m); len(all) > 0 {
				return fmt.Sprintf("%.0f", all[0])
			}
			return "-"
		}
		latency := "-"
		if all := r.Results.Samples(row.Series, harness.MetricP99); len(all) > 0 {
			latency = fmt.Sprintf("%.2f", all[0]/1e3)
		}
		busy := "-"
		if all := r.Results.Samples(row.Series, metricBusy); len(all) > 0 {
			busy = fmt.Sprintf("%.0f %%", 100*all[0])
		}
		scenario := row.Scenario
		flood := row.Series
		flood.Scenario, _, _ = strings.Cut(scenario, ": ")
		flood.Parameters = result.Parameters{}
		if has {
			flood.Parameters["records"] = records
		}
		if all := r.Results.Samples(flood, metricFlood); len(all) > 0 && r.Results.Samples(row.Series, metricReached) != nil {
			scenario += fmt.Sprintf(" (%.0f kpps)", all[0]/1e3)
		}
		r.Say("  %-74s %9s %9s %9s %9s %9s %9s %9s %10s %10s %6s", scenario, count(metricAsked), count(metricFailed), count(metricRefused), count(metricReset), count(metricTimedOut),
			count(metricWrong), count(metricDelayed), count(metricReached), latency, busy)
	}
	r.Say("\nWithout an answer a client has failed: one-shot UDP after %s, all others after %s; delayed are answers that took more than 0.9 s.", patienceUDP, patience)
	r.Say("CPUs is how busy the whole machine was: near 100 %% clients may fail for want of CPU. kpps is what the generator of a flood sent.")
	if !proxies {
		r.Say("There was no Kubernetes to run at --controlplane, or --case leaves it out, so kube-proxy is left out.")
	}
}
