// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/util/plural"
	"beeline.io/beeline/internal/util/printable"
)

// serviceHealth prints the results of a Service's health check.
func serviceHealth(w io.Writer, h *api.Health) {
	if h == nil {
		return
	}
	fmt.Fprintf(w, "  health check: %s\n", h.Check)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, b := range h.Backends {
		fmt.Fprintf(t, "    %s\t%s\n", endpointText(b), printable.Line(b.String()))
	}
	t.Flush()
}

func endpointText(b api.BackendHealth) string {
	text := fmt.Sprintf("%s/%s", b.Address, b.Protocol)
	if b.ProbePath != "" {
		text += fmt.Sprintf(" (%s)", b.ProbePath)
	}
	if b.CheckAddress != b.Address {
		text += fmt.Sprintf(" (checked at port %d)", b.CheckAddress.Port())
	}
	return text
}

// statusHealth prints the health checks' totals and the backends that are down.
func statusHealth(w io.Writer, h *api.HealthStatus) {
	if h == nil {
		return
	}
	c := h.Counters
	fmt.Fprintf(w, "\nHealth checks: %s at %s, %d down; %s, %d failed; %s\n",
		plural.Of(h.Backends, "backend"), plural.Of(h.Targets, "target"), len(h.Down), plural.Of(c.Probes, "probe"), c.Failures, plural.Of(c.Changes, "state change"))
	if c.Late > 0 {
		fmt.Fprintf(w, "  %s began at least an interval late, because too many others were waiting for a timeout\n", plural.Of(c.Late, "probe"))
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, b := range h.Down {
		fmt.Fprintf(t, "  %s\t%s\t%s\n", b.Service, endpointText(b), printable.Line(b.String()))
	}
	t.Flush()
}
