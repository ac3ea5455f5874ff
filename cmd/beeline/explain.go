// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/agent"
	"beeline.io/beeline/internal/observe"
	"beeline.io/beeline/internal/service"
)

func newExplainCommand() *cobra.Command {
	var bpffs, device, output string
	var socket bool
	cmd := &cobra.Command{
		Use:   "explain SOURCE[:PORT] DESTINATION:PORT[/tcp|/udp|/sctp] or DESTINATION/icmp",
		Short: "Say what becomes of a client's packet, and why",
		Long: `Says what becomes of a packet that a client outside of the cluster sends: which
program meets it, which Service's address it has, what decides, which backend it
reaches and how it is changed on the way. The programs themselves are run on such
a packet; nothing is sent, stored or counted. With --socket it says what connect()
meets of a process on this node, or of a pod here whose address SOURCE is.`,
		Example: `  beeline explain 198.51.100.7 192.0.2.1:30080
  beeline explain '[2001:db8::7]:40000' '[2001:db8:1::1]:53/udp' --device eth0
  beeline explain --socket 10.10.1.11 10.96.0.1:443`,
		Args: func(cmd *cobra.Command, args []string) error {
			path := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "/") || strings.HasPrefix(a, "./") })
			if socket && path >= 0 {
				return exitError{exitUsage, fmt.Errorf("%s: --socket is a switch here and takes no path: it asks for the connect() of a process; explain reads the tables under --bpffs and needs no agent", args[path])}
			}
			return usage(cobra.ExactArgs(2))(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			question, err := observe.ParseQuestion(args[0], args[1])
			if err != nil {
				return exitError{exitUsage, err}
			}
			question.Device, question.Socket = device, socket
			answer, err := observe.Explain(bpffs, question)
			if wrong := (*observe.QuestionError)(nil); errors.As(err, &wrong) {
				return exitError{exitUsage, err}
			}
			if err != nil {
				return err
			}
			return write(cmd.OutOrStdout(), output, answer, func(w io.Writer) { explanation(w, answer) })
		},
	}
	cmd.Flags().StringVar(&bpffs, "bpffs", agent.DefaultBPFFS, "directory of the agent's pins")
	cmd.Flags().StringVar(&device, "device", "", "device that the packet comes in by (default: the one that leads to SOURCE)")
	cmd.Flags().BoolVar(&socket, "socket", false, "what a connect() meets, of this node or of a pod on it")
	addOutputFlag(cmd, &output)
	return cmd
}

// explanation prints an answer for people: first what becomes of it, then why.
func explanation(w io.Writer, a *observe.Answer) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-10s  %s\n", name, fmt.Sprintf(format, args...))
	}
	line("asked", "%s", a.Asks)
	line("verdict", "%s: %s", a.Verdict, a.Why)
	entry := a.Entry
	if a.Device != "" {
		entry += " at " + a.Device
	}
	line("met by", "%s", entry)
	for _, b := range a.Before {
		line("", "before that %s", b)
	}
	if f := a.Frontend; f != nil {
		port := ""
		if f.Port != "" {
			port = ", port " + f.Port
		}
		address := f.Address
		if f.Kind != service.ClusterIPOther {
			address += "/" + f.Protocol.String()
		}
		line("Service", "%s%s: %s %s", a.Service, port, f.Kind, address)
	} else if a.Service != "" {
		line("Service", "%s", a.Service)
	}
	if a.Flow != "" {
		line("flow", "%s: it keeps its backend", a.Flow)
	}
	if a.Frontend != nil && a.Class != "" || a.Entry == "connect" {
		line("client", "from %s", a.Class)
	}
	if len(a.Rules) > 0 {
		line("rules", "%s (docs/semantics.md)", strings.Join(a.Rules, ", "))
	}
	members(w, line, a)
	if a.Becomes != nil {
		line("becomes", "%s", a.Becomes)
	}
	if a.Encapsulated != nil {
		line("on the way", "encapsulated: %s; the backend answers the client itself (DSR)", a.Encapsulated)
	}
	if o := a.Out; o != nil {
		mac := "not known yet"
		if o.MAC != "" {
			mac = o.MAC
		}
		line("leaves by", "%s to %s (%s)", o.Device, o.NextHop, mac)
	} else if a.Backend != nil && a.Backend.Local && a.Entry != "connect" {
		line("leaves by", "the node's own stack")
	}
	for _, n := range a.Notes {
		line("note", "%s", n)
	}
}

// members prints the set of which a backend is chosen.
func members(w io.Writer, line func(name, format string, args ...any), a *observe.Answer) {
	slots := 0
	for _, m := range a.Backends {
		slots += m.Slots
	}
	how := map[string]string{"kept": ", by session affinity", "new": ", to be kept by session affinity"}[a.Affinity]
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
		line("", "one of these by chance, by their shares%s", how)
	case a.Backend != nil && len(a.Backends) == 0:
		line("backend", "%s%s", a.Backend.Address, onThisNode(*a.Backend))
	}
}
