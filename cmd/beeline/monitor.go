// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/offline"
	"beeline.io/beeline/internal/util/plural"
)

// monitor prints the edge's events, from the agent's event stream or, if no agent is running, from the pinned
// tables.
type monitor struct {
	socket, pins, output string
	view                 view // --no-headers and --namespace
	filter               api.Filter
	out, notes           io.Writer
}

func newMonitorCommand() *cobra.Command {
	var m monitor
	cmd := &cobra.Command{
		Use: "monitor", Short: "Watch new flows, rejects and drops as they happen",
		Long: `Prints each new flow of clients outside the cluster, and each reject and drop
with its reason, until interrupted. If events come too fast, it prints how many were
lost. Packets of established flows are not shown.
If no agent is running, give --pins.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			m.filter.Service = m.view.inNamespace(m.filter.Service)
			if err := m.filter.Check(); err != nil {
				return exitError{exitUsage, err}
			}
			m.out, m.notes = cmd.OutOrStdout(), cmd.ErrOrStderr()
			read := m.fromAgent
			if cmd.Flags().Changed(pinsFlag) {
				read = m.fromPins
			}
			err := read(cmd.Context())
			if wrong := (*api.RequestError)(nil); errors.As(err, &wrong) {
				return exitError{exitUsage, err}
			}
			return err
		},
	}
	cmd.Flags().StringVar(&m.socket, socketFlag, api.DefaultSocket, "unix socket of the agent")
	cmd.Flags().StringVar(&m.pins, pinsFlag, api.DefaultBPFFS, "read the tables pinned in this directory; only while no agent is running")
	cmd.Flags().BoolVar(&m.filter.Drops, "drops", false, "only rejects and drops")
	cmd.Flags().StringVar(&m.filter.Service, "service", "", "only packets for this Service: namespace/name, or a name that no other has")
	cmd.Flags().StringVar(&m.filter.Device, "device", "", "only packets at this device")
	cmd.Flags().StringVar(&m.filter.Reason, "reason", "", "only this reason, as -o json prints it")
	m.view.addHeaderFlag(cmd)
	m.view.addNamespaceFlags(cmd)
	exclusive(cmd, socketFlag, pinsFlag)
	addOutputFlag(cmd, &m.output, "table", "json")
	return cmd
}

func (m *monitor) fromAgent(ctx context.Context) error {
	pins := cmp.Or(api.PinsOf(m.socket), api.DefaultBPFFS)
	q := question{socket: m.socket, without: fmt.Sprintf("watch without an agent with --%s %s", pinsFlag, pins),
		withoutHung: "it alone may read the events as long as it runs; `beeline status` shows what is known of it; ask again, or restart it"}
	client := api.NewClient(m.socket)
	err := client.Alive(ctx)
	if err == nil {
		watching, stop := context.WithCancel(ctx)
		defer stop()
		go m.noteSilence(watching, client, silenceInterval)
		err = client.Watch(ctx, m.filter, m.begin, m.print)
	}
	return q.explained(err)
}

// silenceInterval is how often noteSilence asks.
const silenceInterval = 5 * time.Second

// noteSilence reports when the agent no longer answers, and when it does again: there are no events in between.
func (m *monitor) noteSilence(ctx context.Context, client *api.Client, interval time.Duration) {
	for silent := false; wait(ctx, interval); {
		was := silent
		silent = errors.Is(client.Alive(ctx), api.ErrNoAnswer)
		switch {
		case silent && !was:
			fmt.Fprintln(m.notes, "the agent does not answer, and reports no events until it does: see `beeline status`")
		case was && !silent && ctx.Err() == nil:
			fmt.Fprintln(m.notes, "the agent answers again")
		}
	}
}

// agentInterval is how often fromPins checks whether an agent has started.
const agentInterval = time.Second

// fromPins reads the events directly until an agent starts.
func (m *monitor) fromPins(ctx context.Context) error {
	if err := m.alone(); err != nil {
		return err
	}
	events, closeEvents, err := bpf.OpenEvents(m.pins)
	if err != nil {
		return err
	}
	defer closeEvents()
	tables, err := bpf.OpenTables(m.pins)
	if err != nil {
		return err
	}
	if err := offline.CheckNames(&m.filter, tables.Services); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		for tick := time.NewTicker(agentInterval); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
				if err := m.alone(); err != nil {
					cancel(err)
				}
			}
		}
	}()
	reader := offline.NewEventReader(tables.Services)
	print := func(n api.EventMessage) {
		if err := m.print(n); err != nil {
			cancel(err)
		}
	}
	err = events.Read(ctx, m.begin, func(e *bpf.EdgeEvent) {
		if event := reader.Event(e); m.filter.Wants(event) {
			print(api.EventMessage{Event: event})
		}
	}, func(lost uint64) { print(api.EventMessage{LostEvents: lost}) })
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// alone returns an error if an agent is running: the agent is then the only reader of the events.
func (m *monitor) alone() error {
	if running, pid := bpf.AgentRunning(m.pins); running {
		return fmt.Errorf("an agent is running on %s (pid %d), and it alone may read the events: leave --pins out, so that it is asked; if it does not answer, restart it (`beeline status` shows what is known of it)", m.pins, pid)
	}
	return nil
}

const eventFormat = "%-15s  %-3s  %-10s  %-24s  %-4s  %-45s  %s\n"

// begin reports that events are shown from now on.
func (m *monitor) begin() {
	fmt.Fprintln(m.notes, "watching")
	if m.output == "table" && !m.view.noHeaders {
		fmt.Fprintf(m.out, eventFormat, "TIME", "BY", "DEVICE", "SERVICE", "", "PACKET", "WHAT")
	}
}

func (m *monitor) print(n api.EventMessage) error {
	if n.Event != nil && !m.view.of(n.Event.Service) {
		return nil
	}
	if m.output == "json" {
		text, err := versioned(n)
		if err == nil {
			_, err = m.out.Write(append(text, '\n'))
		}
		return err
	}
	if n.LostEvents > 0 {
		fmt.Fprintf(m.out, "! lost, because they came too fast: %s\n", plural.Of(n.LostEvents, "event"))
	}
	e := n.Event
	if e == nil {
		return nil
	}
	what := fmt.Sprintf("%s (%s)", e.Why, e.Reason)
	if e.Backend.IsValid() {
		what = fmt.Sprintf("%s to %s", e.Why, e.Backend)
	}
	if e.SeenAs.IsValid() {
		what += fmt.Sprintf(", as %s", e.SeenAs)
	}
	name := e.Service
	if name == "" {
		name = "-"
	}
	packet := fmt.Sprintf("%s > %s", e.Client, e.Address)
	if e.Address.Port() == 0 { // ICMP has no port
		packet = fmt.Sprintf("%s > %s", e.Client.Addr(), e.Address.Addr())
	}
	_, err := fmt.Fprintf(m.out, eventFormat, e.Time.Local().Format("15:04:05.000000"), e.Hook, e.Device, name, e.Protocol,
		packet, what)
	return err
}
