// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/agent"
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/observe"
)

// monitor prints what the edge does, as the agent tells it or, where none is running,
// the pinned tables.
type monitor struct {
	socket, bpffs, output string
	filter                observe.Filter
	out, notes            io.Writer
}

func newMonitorCommand() *cobra.Command {
	var m monitor
	cmd := &cobra.Command{
		Use: "monitor", Short: "Watch new flows, refusals and drops as they happen",
		Long: `Prints each new flow of clients outside of the cluster, each refusal and each drop
with its reason, until it is interrupted; and how many could not be told, if so
many come that there is no room. Packets of flows that are known are not shown.
Where no agent is running, name its --bpffs.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := m.filter.Check(); err != nil {
				return exitError{exitUsage, err}
			}
			if m.output == "yaml" {
				return exitError{exitUsage, errors.New("-o yaml: a stream is printed as table or json")}
			}
			m.out, m.notes = cmd.OutOrStdout(), cmd.ErrOrStderr()
			read := m.fromAgent
			if cmd.Flags().Changed("bpffs") {
				read = m.fromPins
			}
			err := read(cmd.Context())
			if wrong := (*observe.QuestionError)(nil); errors.As(err, &wrong) {
				return exitError{exitUsage, err}
			}
			return err
		},
	}
	cmd.Flags().StringVar(&m.socket, "socket", agent.DefaultSocket, "unix socket of the agent")
	cmd.Flags().StringVar(&m.bpffs, "bpffs", agent.DefaultBPFFS, "directory of the pins of an agent that is not running")
	cmd.Flags().BoolVar(&m.filter.Drops, "drops", false, "only what was not served: refusals and drops")
	cmd.Flags().StringVar(&m.filter.Service, "service", "", "only packets for this Service, as namespace/name")
	cmd.Flags().StringVar(&m.filter.Device, "device", "", "only packets met at this device")
	cmd.Flags().StringVar(&m.filter.Reason, "reason", "", "only this reason, as -o json has it")
	cmd.MarkFlagsMutuallyExclusive("socket", "bpffs")
	addOutputFlag(cmd, &m.output)
	return cmd
}

func (m *monitor) fromAgent(ctx context.Context) error {
	err := agent.NewClient(m.socket).Watch(ctx, m.filter, m.begin, m.print)
	if errors.Is(err, agent.ErrNotRunning) {
		return fmt.Errorf("no agent answers on %s: name its --socket, or the --bpffs of one that is not running", m.socket)
	}
	return err
}

// agentInterval is how often it is looked whether an agent has started.
const agentInterval = time.Second

// fromPins reads the events itself, as long as no agent does.
func (m *monitor) fromPins(ctx context.Context) error {
	if err := m.alone(); err != nil {
		return err
	}
	events, closeEvents, err := datapath.OpenEvents(m.bpffs)
	if err != nil {
		return err
	}
	defer closeEvents()
	tables, err := datapath.OpenTables(m.bpffs)
	if err != nil {
		return err
	}
	if err := m.filter.CheckNames(tables.Services); err != nil {
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
	reader := observe.NewEventReader(tables.Services)
	print := func(n observe.Notice) {
		if err := m.print(n); err != nil {
			cancel(err)
		}
	}
	err = events.Read(ctx, m.begin, func(e *datapath.EdgeEvent) {
		if event := reader.Event(e); m.filter.Wants(event) {
			print(observe.Notice{Event: event})
		}
	}, func(lost uint64) { print(observe.Notice{Lost: lost}) })
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// alone is an error if an agent is running, which reads the events for all.
func (m *monitor) alone() error {
	if running, pid := datapath.AgentRunning(m.bpffs); running {
		return fmt.Errorf("an agent is running on %s (pid %d) and has the events: name its --socket in place of --bpffs", m.bpffs, pid)
	}
	return nil
}

const eventFormat = "%-15s  %-3s  %-10s  %-24s  %-4s  %-45s  %s\n"

// begin says that all that happens from now on is shown.
func (m *monitor) begin() {
	fmt.Fprintln(m.notes, "watching")
	if m.output == "table" {
		fmt.Fprintf(m.out, eventFormat, "TIME", "BY", "DEVICE", "SERVICE", "", "PACKET", "WHAT")
	}
}

func (m *monitor) print(n observe.Notice) error {
	if m.output == "json" {
		return json.NewEncoder(m.out).Encode(n)
	}
	if n.Lost > 0 {
		fmt.Fprintf(m.out, "! %d events came too fast to be told\n", n.Lost)
	}
	e := n.Event
	if e == nil {
		return nil
	}
	what := fmt.Sprintf("%s (%s)", e.Why, e.Reason)
	if e.Backend.IsValid() {
		what = fmt.Sprintf("%s to %s", e.Why, e.Backend)
	}
	if e.Via.IsValid() {
		what += fmt.Sprintf(", as %s", e.Via)
	}
	name := e.Service
	if name == "" {
		name = "-"
	}
	packet := fmt.Sprintf("%s > %s", e.Client, e.Address)
	if e.Address.Port() == 0 { // ICMP has none
		packet = fmt.Sprintf("%s > %s", e.Client.Addr(), e.Address.Addr())
	}
	_, err := fmt.Fprintf(m.out, eventFormat, e.Time.Local().Format("15:04:05.000000"), e.Entry, e.Device, name, e.Protocol,
		packet, what)
	return err
}
