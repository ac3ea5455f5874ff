// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source"
	"beeline.io/beeline/internal/util/plural"
	"beeline.io/beeline/internal/util/printable"
)

func newStatusCommand() *cobra.Command {
	var l lookup
	var verbose bool
	cmd := &cobra.Command{
		Use: "status", Short: "Show the state of the agent and its datapath",
		Long: `Shows what is wrong and what to change, then the state of the agent and its datapath on
one screen. With --verbose it shows everything: what is attached where, how full the tables
are, all counters, the kernel's features. docs/operate/conditions.md explains each
condition.

If no agent answers within a second, it shows what the pins say, with the condition
AgentNotRunning or AgentNotAnswering.

Exit code 3 if there is an error, 4 if there are only warnings, 1 if there are neither an
agent nor pins, or they cannot be read.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var status *api.Status
			err := l.show(cmd, func() (any, func(io.Writer), error) {
				var err error
				status, err = l.status(cmd.Context())
				return status, func(w io.Writer) { statusText(w, status, verbose) }, err
			})
			if err != nil || l.interval > 0 {
				return err
			}
			return judged(status.Conditions)
		},
	}
	l.addFlags(cmd)
	l.addWatch(cmd)
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show everything, on more than one screen")
	return cmd
}

// statusText prints a status as text, problems first.
func statusText(w io.Writer, s *api.Status, verbose bool) {
	most := fewConditions
	if verbose {
		most = mostConditions
	}
	conditionsText(w, statusHeadline(s), s.Conditions, most)
	fmt.Fprintln(w)
	if !verbose {
		statusSummary(w, s)
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if s.Running {
		fmt.Fprintf(t, "Agent:\t%s, pid %d\n", s.Version, s.PID)
	}
	if s.Answered {
		fmt.Fprintf(t, "Running for:\t%s\n", time.Since(s.Started).Round(time.Second))
		fmt.Fprintf(t, "Node:\t%s\n", s.Node)
		fmt.Fprintf(t, "Source:\t%s %s, %s\n", s.Source.Kind, s.Source.Location, sourceState(s.Source))
		connectionText(t, s.Source.Connection)
		fmt.Fprintf(t, "Last sync:\t%s\n", ago(s.Sync.LastSync))
		socketsText(t, s.SocketTermination)
		fmt.Fprintf(t, "Last audit:\t%s, %s since the start\n", ago(s.Sync.LastAudit), plural.Of(s.Sync.Repairs, "repair"))
	}
	fmt.Fprintf(t, "Services:\t%d, with %s and %s\n", s.Counts.Services, plural.Of(s.Counts.Frontends, "frontend"), plural.Of(s.Counts.Backends, "backend"))
	if s.Algorithm != "" {
		fmt.Fprintf(t, "Algorithm:\t%s unless a Service says otherwise; Services with Maglev tables of %d slots: %d\n", s.Algorithm, s.MaglevTableSize, s.Counts.MaglevServices)
	}
	if text := s.Untracked(); text != "" {
		fmt.Fprintf(t, "Untracked:\t%s\n", text)
	}
	dsrText(t, s)
	if s.DSRAccepted != nil {
		fmt.Fprintf(t, "Packets from balancers:\t%s\n", s.DSRAccepted)
	}
	componentsText(t, s)
	fmt.Fprintf(t, "Pins:\t%s\n", s.BPFFS)
	t.Flush()

	statusHealth(w, s.Health)
	statusOptedOut(w, s)
	statusAttachments(w, s)
	statusEdge(w, s)
	statusPods(w, s.Pods)
	statusOffload(w, s.Offload)
	statusTables(w, s)
	statusFeatures(w, s)
}

// statusHeadline is headline, but claims nothing for an agent that was not asked: it may hang.
func statusHeadline(s *api.Status) string {
	if s.Answered || judged(s.Conditions) != nil {
		return headline(s.Conditions)
	}
	return fmt.Sprintf("No problem is visible in the pins. The agent, pid %d, was not asked: status without --%s asks it.", s.PID, pinsFlag)
}

// dsrText prints the DSR settings and how many Services use DSR.
func dsrText(w io.Writer, s *api.Status) {
	if s.DSR == "" || s.DSR == service.DSROff && s.Counts.DSRServices == 0 {
		return
	}
	protocols := ""
	if s.DSRHybrid {
		protocols = " (TCP only)"
	}
	fmt.Fprintf(w, "DSR:\t%s%s unless a Service says otherwise; Services with DSR: %d\n", s.DSR, protocols, s.Counts.DSRServices)
}

// socketsText prints how sockets of removed backends are terminated.
func socketsText(w io.Writer, st api.SocketTermination) {
	fmt.Fprintf(w, "Sockets of removed backends:\t%s (%s)\n", st.Method, st.Why)
	if st.Method == api.SocketTerminationOff {
		return
	}
	tcp := "TCP connections are not ended"
	if st.TCPDrainSeconds > 0 {
		drain := time.Duration(st.TCPDrainSeconds * float64(time.Second))
		tcp = fmt.Sprintf("%d of TCP, after %v; draining: %s", st.EndedTCP, drain, plural.Of(st.DrainingBackends, "backend"))
	}
	fmt.Fprintf(w, "\tended %d of UDP; %s\n", st.EndedUDP, tcp)
	took := time.Duration(st.LastPassSeconds * float64(time.Second)).Round(10 * time.Microsecond)
	fmt.Fprintf(w, "\tlast GC pass %s, took %v for %d network namespaces\n", ago(st.LastPass), took, st.NetworkNamespaces)
	if st.UnreadableProcesses > 0 {
		fmt.Fprintf(w, "\t%s cannot be inspected (needs CAP_SYS_PTRACE)\n", plural.Of(st.UnreadableProcesses, "process"))
	}
}

// connectionText prints the state of the source's connection to its server.
func connectionText(w io.Writer, c *source.Connection) {
	if c == nil {
		return
	}
	state := "connected"
	if !c.Connected {
		state = "not connected"
	}
	fmt.Fprintf(w, "\t%s for %s, last seen %s\n", state, time.Since(c.Since).Round(time.Second), ago(c.LastSeen))
	if c.Error != "" {
		fmt.Fprintf(w, "\t%s\n", printable.Line(c.Error))
	}
	if len(c.WaitingFor) > 0 {
		fmt.Fprintf(w, "\twaiting for %s\n", strings.Join(c.WaitingFor, ", "))
	}
}

func sourceState(s api.Source) string {
	switch {
	case !s.Synced && s.Connection != nil:
		return "not complete yet"
	case !s.Synced:
		return "never read without errors"
	case s.Errors > 0:
		return fmt.Sprintf("%s, last good state from %s", plural.Of(s.Errors, "error"), ago(s.LastGood))
	}
	return "last change " + ago(s.LastGood)
}

func statusAttachments(w io.Writer, s *api.Status) {
	fmt.Fprintln(w, "\nAttached:")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, a := range s.Attachments {
		fmt.Fprintf(t, "  %s\tprogram %d\t%s\n", a.Hook, a.ProgramID, a.Cgroup)
	}
	t.Flush()
	if len(s.Attachments) == 0 {
		fmt.Fprintln(w, "  nothing")
	}
	if c := s.SocketCounters; c != nil {
		fmt.Fprintf(w, "\nConnections: %d to Services, %d rejected, %d dropped, %d passed unchanged; session affinity kept %d\n",
			c.ConnectBalance, c.ConnectReject, c.ConnectDrop, c.ConnectPass, c.AffinityHit)
		fmt.Fprintf(w, "Datagrams of unconnected sockets: %d to Services (%s), %d rejected, %d dropped, %d passed unchanged; %s translated back\n",
			c.DatagramBalance, plural.Of(c.FlowNew, "new flow"), c.DatagramReject, c.DatagramDrop, c.DatagramPass, plural.Of(c.DatagramName, "reply"))
		if c.FlowEvicted > 0 {
			fmt.Fprintf(w, "Flows evicted, because one socket uses more Services than fit: %d\n", c.FlowEvicted)
		}
		if c.BindRefused > 0 {
			fmt.Fprintf(w, "bind() calls refused because a Service or Pod uses the port: %d\n", c.BindRefused)
		}
		if c.ConnectNoBackend+c.DatagramNoBackend+c.AffinityFailed+c.RecordFailed+c.FlowFailed > 0 {
			fmt.Fprintf(w, "Faults so far: %s without a backend, %s and %s not stored\n",
				plural.Of(c.ConnectNoBackend+c.DatagramNoBackend, "slot"), plural.Of(c.AffinityFailed, "affinity entry"), plural.Of(c.RecordFailed+c.FlowFailed, "socket record"))
		}
	}
}

func statusTables(w io.Writer, s *api.Status) {
	if len(s.Tables) == 0 {
		return
	}
	fmt.Fprintln(w, "\nTables:")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range s.Tables {
		flag := ""
		if f.Flag != "" {
			flag = "--" + f.Flag
		}
		fmt.Fprintf(t, "  %s\t%d of %d\t%s\n", f.Table, f.Used, f.Limit, flag)
	}
	t.Flush()
}

func statusFeatures(w io.Writer, s *api.Status) {
	fmt.Fprintln(w, "\nKernel:")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range s.Features {
		if f.Present {
			fmt.Fprintf(t, "  found\t%s\t(Linux %s)\n", f.Name, f.SinceLinux)
		} else {
			fmt.Fprintf(t, "  MISSING\t%s\t(Linux %s): %s\n", f.Name, f.SinceLinux, f.EffectOfAbsence)
		}
	}
	t.Flush()
}

func ago(at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return time.Since(at).Round(time.Second).String() + " ago"
}
