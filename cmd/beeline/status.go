// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/observe"
	"beeline.io/beeline/internal/printable"
	"beeline.io/beeline/internal/service"
	"beeline.io/beeline/internal/source"
	"beeline.io/beeline/internal/sync"
	"beeline.io/beeline/internal/terminate"
)

func newStatusCommand() *cobra.Command {
	var l lookup
	cmd := &cobra.Command{
		Use: "status", Short: "Show how the agent and its datapath are",
		Long: `Shows what is attached where, what the kernel has, how full the tables are, when
they were last brought up to date, and what is wrong. Exit code 3 if something is.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			status, err := l.status(cmd.Context())
			if err != nil {
				return err
			}
			if err := write(cmd.OutOrStdout(), l.output, status, func(w io.Writer) { statusText(w, status) }); err != nil {
				return err
			}
			if len(status.Complaints()) > 0 {
				return exitError{code: exitDegraded}
			}
			return nil
		},
	}
	l.addFlags(cmd)
	return cmd
}

// statusText prints a status for people: what is wrong first.
func statusText(w io.Writer, s *observe.Status) {
	complaints := s.Complaints()
	if len(complaints) == 0 {
		fmt.Fprintln(w, "All is well.")
	}
	for _, c := range complaints {
		fmt.Fprintf(w, "! %s\n", printable.Line(c))
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t)
	if s.Running {
		fmt.Fprintf(t, "Agent:\t%s, pid %d\n", s.Version, s.PID)
	}
	if s.Answered {
		fmt.Fprintf(t, "Running for:\t%s\n", time.Since(s.Started).Round(time.Second))
		fmt.Fprintf(t, "Node:\t%s\n", s.Node)
		fmt.Fprintf(t, "Source:\t%s %s, %s\n", s.Source.Kind, s.Source.Location, sourceState(s.Source))
		connectionText(t, s.Source.Connection)
		fmt.Fprintf(t, "Last sync:\t%s\n", ago(s.Sync.LastSync))
		socketsText(t, s.Sockets)
		fmt.Fprintf(t, "Last audit:\t%s, %d repairs since the start\n", ago(s.Sync.LastAudit), s.Sync.Repairs)
	}
	fmt.Fprintf(t, "Services:\t%d, with %d frontends and %d backends\n", s.Counts.Services, s.Counts.Frontends, s.Counts.Backends)
	if s.Algorithm != "" {
		fmt.Fprintf(t, "Algorithm:\t%s unless a Service says otherwise; Services with Maglev tables of %d slots: %d\n", s.Algorithm, s.TableSize, s.Counts.Maglev)
	}
	if text := s.Untracked(); text != "" {
		fmt.Fprintf(t, "Untracked:\t%s\n", text)
	}
	dsrText(t, s)
	if s.DSRAccepted != nil {
		fmt.Fprintf(t, "Packets of balancers:\t%s\n", s.DSRAccepted)
	}
	fmt.Fprintf(t, "Pins:\t%s\n", s.BPFFS)
	t.Flush()

	few(w, s.Source.Problems, "problems of the source: beeline status -o json has them all", func(p string) string { return "  " + p })
	few(w, s.Source.Notes, "notes of the source: beeline status -o json has them all", func(n string) string { return "  note: " + strings.Replace(n, "warning: ", "", 1) })
	few(w, worstFirst(s.Objects), "objects: beeline status -o json has them all, and beeline service show says more of one", objectText)
	few(w, s.HeldPorts, "sockets at ports of Services and Pods: beeline status -o json has them all", func(h observe.HeldPort) string { return fmt.Sprint(h) })
	if s.HeldPortsUnknown != "" {
		fmt.Fprintf(w, "Which sockets hold ports of Services and Pods is not known: %s\n", s.HeldPortsUnknown)
	}
	statusHealth(w, s.Health)
	statusOptedOut(w, s)
	statusAttachments(w, s)
	statusEdge(w, s)
	statusTables(w, s)
	statusFeatures(w, s)
}

// mostLines is how many of many things a status names.
const mostLines = 10

// few prints the first of some things, and counts the others.
func few[T any](w io.Writer, all []T, more string, text func(T) string) {
	for _, one := range all[:min(len(all), mostLines)] {
		fmt.Fprintln(w, printable.Line(text(one)))
	}
	if len(all) > mostLines {
		fmt.Fprintf(w, "... and %d more %s\n", len(all)-mostLines, more)
	}
}

// worstFirst has objects with a failure before those that ask for what they do not get.
func worstFirst(objects []sync.Status) []sync.Status {
	sorted := slices.Clone(objects)
	slices.SortStableFunc(sorted, func(a, b sync.Status) int { return cmp.Compare(len(b.Reasons), len(a.Reasons)) })
	return sorted
}

// objectText is a line for an object: what is wrong first, and how much there is beside.
func objectText(o sync.Status) string {
	why := slices.Concat(o.Reasons, o.Problems)
	text := fmt.Sprintf("%s: %s", o.Owner, o.State)
	if len(why) > 0 {
		text += ": " + why[0]
	}
	if len(why) > 1 {
		text += fmt.Sprintf(" (and %d more)", len(why)-1)
	}
	return text
}

// dsrText says which Services' backends answer clients outside themselves.
func dsrText(w io.Writer, s *observe.Status) {
	if s.DSR == "" || s.DSR == service.DSROff && s.Counts.DSR == 0 {
		return
	}
	protocols := ""
	if s.DSRHybrid {
		protocols = " (TCP alone)"
	}
	fmt.Fprintf(w, "DSR:\t%s%s unless a Service says otherwise; Services with DSR: %d\n", s.DSR, protocols, s.Counts.DSR)
}

// socketsText says how sockets end whose backend is gone.
func socketsText(w io.Writer, st terminate.Status) {
	fmt.Fprintf(w, "Sockets of backends that are gone:\t%s (%s)\n", st.Method, st.Why)
	if st.Method == terminate.Off {
		return
	}
	tcp := "TCP connections are left alone"
	if st.TCPDrainSeconds > 0 {
		drain := time.Duration(st.TCPDrainSeconds * float64(time.Second))
		tcp = fmt.Sprintf("%d of TCP, after %v; %d backends are draining", st.EndedTCP, drain, st.Draining)
	}
	fmt.Fprintf(w, "\tended %d of UDP; %s\n", st.EndedUDP, tcp)
	took := time.Duration(st.LastSeconds * float64(time.Second)).Round(10 * time.Microsecond)
	fmt.Fprintf(w, "\tlast sweep %s, took %v for %d network namespaces\n", ago(st.LastSweep), took, st.Namespaces)
	if st.Unreadable > 0 {
		fmt.Fprintf(w, "\t%d processes may not be looked into (CAP_SYS_PTRACE)\n", st.Unreadable)
	}
}

// connectionText says how a source stands with its server.
func connectionText(w io.Writer, c *source.Connection) {
	if c == nil {
		return
	}
	state := "connected"
	if !c.Connected {
		state = "not connected"
	}
	fmt.Fprintf(w, "\t%s for %s, last heard %s\n", state, time.Since(c.Since).Round(time.Second), ago(c.LastHeard))
	if c.Error != "" {
		fmt.Fprintf(w, "\t%s\n", printable.Line(c.Error))
	}
	if len(c.WaitingFor) > 0 {
		fmt.Fprintf(w, "\twaiting for %s\n", strings.Join(c.WaitingFor, ", "))
	}
}

func sourceState(s observe.Source) string {
	switch {
	case !s.Synced && s.Connection != nil:
		return "not complete yet"
	case !s.Synced:
		return "never read without errors"
	case s.Errors > 0:
		return fmt.Sprintf("%d errors, last good state from %s", s.Errors, ago(s.LastGood))
	}
	return "last change " + ago(s.LastGood)
}

func statusAttachments(w io.Writer, s *observe.Status) {
	fmt.Fprintln(w, "\nAttached:")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, a := range s.Attachments {
		fmt.Fprintf(t, "  %s\tprogram %d\t%s\n", a.Hook, a.ProgramID, a.Cgroup)
	}
	t.Flush()
	if len(s.Attachments) == 0 {
		fmt.Fprintln(w, "  nothing")
	}
	if c := s.Counters; c != nil {
		fmt.Fprintf(w, "\nConnections: %d to Services, %d rejected, %d dropped, %d left alone; session affinity kept %d\n",
			c.ConnectBalance, c.ConnectReject, c.ConnectDrop, c.ConnectPass, c.AffinityHit)
		fmt.Fprintf(w, "Datagrams of unconnected sockets: %d to Services (%d flows begun), %d rejected, %d dropped, %d left alone; %d answers named\n",
			c.DatagramBalance, c.FlowNew, c.DatagramReject, c.DatagramDrop, c.DatagramPass, c.DatagramName)
		if c.FlowEvicted > 0 {
			fmt.Fprintf(w, "Flows forgotten, because one socket asks more Services than fit: %d\n", c.FlowEvicted)
		}
		if c.BindRefused > 0 {
			fmt.Fprintf(w, "Ports of Services and Pods that bind() was refused: %d\n", c.BindRefused)
		}
		if c.ConnectFault+c.DatagramFault+c.AffinityFailed+c.RecordFailed+c.FlowFailed > 0 {
			fmt.Fprintf(w, "Faults so far: %d found no backend behind a slot, %d affinities and %d socket records could not be stored\n",
				c.ConnectFault+c.DatagramFault, c.AffinityFailed, c.RecordFailed+c.FlowFailed)
		}
	}
}

func statusTables(w io.Writer, s *observe.Status) {
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

func statusFeatures(w io.Writer, s *observe.Status) {
	fmt.Fprintln(w, "\nKernel:")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range s.Features {
		if f.Present {
			fmt.Fprintf(t, "  found\t%s\t(Linux %s)\n", f.Name, f.Since)
		} else {
			fmt.Fprintf(t, "  MISSING\t%s\t(Linux %s): %s\n", f.Name, f.Since, f.Cost)
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
