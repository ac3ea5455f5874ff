// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/tables/reconcile"
	"beeline.io/beeline/internal/util/plural"
)

// statusSummary prints one line per part of the agent, so that everything fits on one screen.
func statusSummary(w io.Writer, s *api.Status) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(t, "%s:\t%s\n", name, fmt.Sprintf(format, args...))
	}
	if s.Answered {
		line("Agent", "%s, pid %d, node %s, running for %s", s.Version, s.PID, s.Node, time.Since(s.Started).Round(time.Second))
		line("Source", "%s %s, %s", s.Source.Kind, s.Source.Location, sourceState(s.Source))
		line("Sync", "last %s; audit %s, %s", ago(s.Sync.LastSync), ago(s.Sync.LastAudit), plural.Of(s.Sync.Repairs, "repair"))
	} else if s.Running {
		line("Agent", "pid %d", s.PID)
	}
	line("Services", "%s", servicesText(s))
	if f, ok := fullest(s); ok {
		line("Tables", "fullest: %s, %d of %d", f.Table, f.Used, f.Limit)
	}
	line("Sockets", "%s", hooksText(s))
	if c := s.SocketCounters; c != nil {
		line("Connections", "%d to Services, %d rejected, %d dropped", c.ConnectBalance+c.DatagramBalance, c.ConnectReject+c.DatagramReject, c.ConnectDrop+c.DatagramDrop)
	}
	if e := s.Edge; e != nil {
		line("Devices", "%s", devicesText(e))
		if e.Mode != api.EdgeOff {
			line("Flows", "%s in %d places, %d of closed connections", plural.Of(e.Conntrack.Entries, "conntrack entry"), e.Conntrack.Limit, e.Conntrack.Evictable)
		}
	}
	if s.Pods != nil {
		line("Pod shortcut", "%s", s.Pods.Line())
	}
	if s.Offload != nil {
		line("Offload", "%s", s.Offload.Line())
	}
	if h := s.Health; h != nil {
		line("Health checks", "%s, %d down", plural.Of(h.Backends, "backend"), len(h.Down))
	}
	if n := len(s.OptedOut.Pods); n > 0 {
		line("Opted out", "%s without the socket shortcut", plural.Of(n, "pod"))
	}
	componentsText(t, s)
	line("Kernel", "%s", kernelText(s))
	line("Pins", "%s", s.BPFFS)
	t.Flush()
	fmt.Fprintln(w, "\nbeeline status -v shows everything.")
}

// componentsText prints a line for each component with a state.
func componentsText(w io.Writer, s *api.Status) {
	for _, c := range s.Components {
		fmt.Fprintf(w, "Component %s:\t%s\n", c.Name, c.State)
	}
}

func servicesText(s *api.Status) string {
	text := fmt.Sprintf("%d, with %s and %s", s.Counts.Services, plural.Of(s.Counts.Frontends, "frontend"), plural.Of(s.Counts.Backends, "backend"))
	if s.Counts.MaglevServices > 0 {
		text += fmt.Sprintf("; with Maglev: %d", s.Counts.MaglevServices)
	}
	if s.Counts.DSRServices > 0 {
		text += fmt.Sprintf("; with DSR: %d", s.Counts.DSRServices)
	}
	return text
}

// fullest returns the usage of the table with the largest fraction in use.
func fullest(s *api.Status) (fullest reconcile.Usage, ok bool) {
	part := func(f reconcile.Usage) float64 { return float64(f.Used) / float64(max(f.Limit, 1)) }
	for _, f := range s.Tables {
		if !ok || part(f) > part(fullest) {
			fullest, ok = f, true
		}
	}
	return fullest, ok
}

// hooksText prints how many socket programs are attached, and to which cgroup.
func hooksText(s *api.Status) string {
	if len(s.Attachments) == 0 {
		return "no program is attached"
	}
	of := ""
	if s.ExpectedAttachments > 0 {
		of = fmt.Sprintf(" of %d", s.ExpectedAttachments)
	}
	return fmt.Sprintf("%d%s programs attached to %s", len(s.Attachments), of, cmp.Or(s.Cgroup, s.Attachments[0].Cgroup))
}

// mostDevices is the maximum number of devices named in one line.
const mostDevices = 6

func devicesText(e *api.Edge) string {
	if e.Mode == api.EdgeOff {
		return "none (--edge-mode=off)"
	}
	if len(e.Devices) == 0 {
		return "none: no device has a default route or an address of the Node, or matches --devices"
	}
	var names []string
	for _, d := range e.Devices[:min(len(e.Devices), mostDevices)] {
		names = append(names, fmt.Sprintf("%s (%s)", d.Name, d.Mode))
	}
	if more := len(e.Devices) - mostDevices; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// kernelText counts kernel features and names the missing ones.
func kernelText(s *api.Status) string {
	var missing []string
	for _, f := range s.Features {
		if !f.Present {
			missing = append(missing, f.Name)
		}
	}
	text := fmt.Sprintf("%d of %d features", len(s.Features)-len(missing), len(s.Features))
	if len(missing) > 0 {
		text += "; missing: " + strings.Join(missing, ", ")
	}
	return text
}
