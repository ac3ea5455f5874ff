// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/report/explain"
)

func newExplainCommand() *cobra.Command {
	cmd := commandGroup("explain", "Explain what happens to a client's packet or connect(), and why", newExplainPacketCommand(), newExplainConnectCommand())
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 && (strings.ContainsAny(args[0], ".:")) {
			return exitError{exitUsage, fmt.Errorf("%s: use `beeline explain packet` for packets from the network, or `beeline explain connect` for sockets of this node and its pods", args[0])}
		}
		return knownCommand(cmd, args)
	}
	return cmd
}

func newExplainPacketCommand() *cobra.Command {
	var e explainCommand
	cmd := &cobra.Command{
		Use:   "packet SOURCE[:PORT] DESTINATION:PORT[/tcp|/udp|/sctp] or DESTINATION/icmp",
		Short: "Explain what happens to a packet from a client outside the cluster",
		Long: `Explains what happens to a packet from a client outside the cluster: which
program receives it, which Service its address belongs to, which rule decides, which
backend it reaches and how it is rewritten. The attached programs are test-run on such
a packet; nothing is sent, stored or counted.`,
		Example: `  beeline explain packet 198.51.100.7 192.0.2.1:30080
  beeline explain packet '[2001:db8::7]:40000' '[2001:db8:1::1]:53/udp' --device eth0`,
		Args: usage(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error { return e.run(cmd, args) },
	}
	cmd.Flags().StringVar(&e.device, "device", "", "device that receives the packet (default: the device of the route to SOURCE)")
	e.addFlags(cmd)
	return cmd
}

func newExplainConnectCommand() *cobra.Command {
	e := explainCommand{connect: true}
	cmd := &cobra.Command{
		Use:   "connect SOURCE[:PORT] DESTINATION:PORT[/tcp|/udp|/sctp]",
		Short: "Explain what happens to connect() in a process on this node or in one of its pods",
		Long: `Explains what happens to connect() in a process on this node, or in the local pod with
the address SOURCE: which Service it addresses, and which backends the socket may get.`,
		Example: `  beeline explain connect 10.10.1.11 10.96.0.1:443`,
		Args:    usage(cobra.ExactArgs(2)),
		RunE:    func(cmd *cobra.Command, args []string) error { return e.run(cmd, args) },
	}
	e.addFlags(cmd)
	return cmd
}

// explainCommand explains a packet or connect() with the pinned programs and tables.
type explainCommand struct {
	pins, device string
	connect      bool
	view
}

func (e *explainCommand) addFlags(cmd *cobra.Command) {
	addPinsFlags(cmd, &e.pins)
	e.view.addFlags(cmd)
}

func (e *explainCommand) run(cmd *cobra.Command, args []string) error {
	question, err := explain.ParseQuestion(args[0], args[1])
	if err != nil {
		return exitError{exitUsage, err}
	}
	question.Device, question.Socket = e.device, e.connect
	answer, err := explain.Explain(e.pins, question, components().Explain)
	if wrong := (*api.RequestError)(nil); errors.As(err, &wrong) {
		return exitError{exitUsage, err}
	}
	if err != nil {
		return err
	}
	return write(cmd.OutOrStdout(), e.output, answer, func(w io.Writer) { explanation(w, answer) })
}

// explanation prints an answer as text: first what happens, then why.
func explanation(w io.Writer, a *explain.Answer) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-10s  %s\n", name, fmt.Sprintf(format, args...))
	}
	line("original", "%s", a.Original)
	why := strings.TrimPrefix(strings.TrimPrefix(a.Why, "dropped: "), "rejected: ") // the verdict already says that
	line("verdict", "%s: %s", a.Verdict, why)
	entry := a.Hook
	if a.Device != "" {
		entry += " at " + a.Device
	}
	line("handled by", "%s", entry)
	if a.Offload != nil {
		line("offload", "%s", a.Offload)
	}
	for _, b := range a.EarlierPrograms {
		line("", "before that %s", b)
	}
	if f := a.Frontend; f != nil {
		port := ""
		if f.Port != "" {
			port = ", port " + f.Port
		}
		address := f.Address
		if f.Kind != service.ClusterIPOtherPorts {
			address += "/" + f.Protocol.String()
		}
		line("Service", "%s%s: %s %s", a.Service, port, f.Kind, address)
	} else if a.Service != "" {
		line("Service", "%s", a.Service)
	}
	if a.FlowState != "" {
		line("flow", "%s: the flow keeps its backend", a.FlowState)
	}
	if a.Frontend != nil && a.ClientClass != "" || a.Hook == "connect" {
		line("client", "from %s", a.ClientClass)
	}
	for i, rule := range a.Rules {
		name := "rules"
		if i > 0 {
			name = ""
		}
		line(name, "%s: %s", rule, explain.Rules[rule])
	}
	members(line, a)
	if a.Rewritten != nil {
		line("rewritten", "%s", a.Rewritten)
	}
	if a.Encapsulated != nil {
		line("forwarded", "encapsulated: %s; the backend answers the client directly (DSR)", a.Encapsulated)
	}
	if o := a.LeavesBy; o != nil {
		mac := "not resolved yet"
		if o.MAC != "" {
			mac = o.MAC
		}
		line("leaves by", "%s to %s (%s)", o.Device, o.NextHop, mac)
	} else if a.Backend != nil && a.Backend.Local && a.Hook != "connect" {
		line("leaves by", "the node's network stack")
	}
	if f := a.Frontend; f != nil && f.Kind != service.ClusterIPOtherPorts && a.Verdict == service.Reject.String() {
		line("note", "`beeline service show %s` shows why it has no endpoint for this client", a.Service)
	}
	for _, n := range a.Notes {
		line("note", "%s", n)
	}
}

// members prints the backend set.
func members(line func(name, format string, args ...any), a *explain.Answer) {
	slots := 0
	for _, m := range a.Backends {
		slots += m.Slots
	}
	how := map[string]string{"kept": ", by session affinity", "new": ", which session affinity will then keep"}[a.Affinity]
	name := "backends"
	for _, m := range a.Backends {
		chosen := ""
		if a.Backend != nil && a.Backend.ID == m.ID {
			chosen = "  <- chosen" + how
		}
		line(name, "%-24s share %d/%d%s%s", m.Address, m.Slots, slots, onThisNode(m), chosen)
		name = ""
	}
	switch {
	case a.Backend == nil && len(a.Backends) > 0 && a.Verdict == service.Balance.String():
		line("", "one of these at random, weighted by share%s", how)
	case a.Backend != nil && len(a.Backends) == 0:
		line("backend", "%s%s", a.Backend.Address, onThisNode(*a.Backend))
	}
}
