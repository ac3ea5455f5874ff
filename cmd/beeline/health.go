// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"beeline.io/beeline/internal/observe"
	"beeline.io/beeline/internal/printable"
)

// serviceHealth prints what the health check of a Service says.
func serviceHealth(w io.Writer, h *observe.Health) {
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

func endpointText(b observe.BackendHealth) string {
	text := fmt.Sprintf("%s/%s", b.Address, b.Protocol)
	if b.Asked != b.Address {
		text += fmt.Sprintf(" (asked at port %d)", b.Asked.Port())
	}
	return text
}

// statusHealth prints which backends are down.
func statusHealth(w io.Writer, h *observe.HealthStatus) {
	if h == nil {
		return
	}
	c := h.Counters
	fmt.Fprintf(w, "\nHealth checks: %d backends at %d targets, %d down; %d probes, %d failed; %d times a target went down or came back\n",
		h.Backends, h.Targets, len(h.Down), c.Probes, c.Failures, c.Changes)
	if c.Late > 0 {
		fmt.Fprintf(w, "  %d probes so far began an interval late or later, because too many others waited for their timeout\n", c.Late)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, b := range h.Down {
		fmt.Fprintf(t, "  %s\t%s\t%s\n", b.Service, endpointText(b), printable.Line(b.String()))
	}
	t.Flush()
}
