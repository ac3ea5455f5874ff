// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/agent"
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/observe"
)

// flowSource is where the commands that look at flows find them: in the pinned
// tables, with an agent or without.
type flowSource struct{ bpffs, service, backend string }

func (s *flowSource) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.bpffs, "bpffs", agent.DefaultBPFFS, "directory of the agent's pins")
	cmd.Flags().StringVar(&s.service, "service", "", "only those of this Service, as namespace/name")
	cmd.Flags().StringVar(&s.backend, "backend", "", "only those that go to this backend: an address, or address:port")
}

// ofBackend says of an address and port whether it is that of --backend; nil: there is no such flag.
func (s *flowSource) ofBackend() (func(netip.AddrPort) bool, error) {
	if s.backend == "" {
		return nil, nil
	}
	if addr, err := netip.ParseAddr(s.backend); err == nil {
		return func(a netip.AddrPort) bool { return a.Addr() == addr.Unmap() }, nil
	}
	end, err := netip.ParseAddrPort(s.backend)
	if err != nil {
		return nil, exitError{exitUsage, fmt.Errorf("--backend %q: give an address, or address:port as 10.0.0.1:8080 or [fd00::1]:8080", s.backend)}
	}
	return func(a netip.AddrPort) bool { return a == netip.AddrPortFrom(end.Addr().Unmap(), end.Port()) }, nil
}

// open returns the flows and the names of services. A Service that is not in the
// tables is a wrong argument.
func (s *flowSource) open() (*datapath.Flows, map[uint32]datapath.ServiceName, error) {
	if s.service != "" && strings.Count(s.service, "/") != 1 {
		return nil, nil, exitError{exitUsage, fmt.Errorf("--service %q: give namespace/name", s.service)}
	}
	flows, err := datapath.OpenFlows(s.bpffs)
	if err != nil {
		return nil, nil, err
	}
	tables, err := datapath.OpenTables(s.bpffs)
	if err != nil {
		return nil, nil, err
	}
	names, err := tables.Services.All()
	if err == nil && s.service != "" {
		err = observe.KnownService(names, s.service)
	}
	if wrong := (*observe.QuestionError)(nil); errors.As(err, &wrong) {
		err = exitError{exitUsage, err}
	}
	return flows, names, err
}

func newFlowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "flow", Short: "Show or end the flows of clients outside of the cluster", Aliases: []string{"flows"},
		Args: knownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newFlowListCommand(), newFlowFlushCommand())
	return cmd
}

func newFlowListCommand() *cobra.Command {
	var s flowSource
	var output string
	cmd := &cobra.Command{
		Use: "list", Short: "List the flows with their backends",
		Long: `Lists the flows of clients outside of the cluster, from the pinned tables: who
asks what, which backend has it, and what that sees in place of the client.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			backend, err := s.ofBackend()
			if err != nil {
				return err
			}
			flows, names, err := s.open()
			if err != nil {
				return err
			}
			all, err := observe.ReadFlows(flows, names)
			if err != nil {
				return err
			}
			if s.service != "" {
				all = slices.DeleteFunc(all, func(f observe.Flow) bool { return f.Service != s.service })
			}
			if backend != nil {
				all = slices.DeleteFunc(all, func(f observe.Flow) bool { return !backend(f.Backend) })
			}
			return write(cmd.OutOrStdout(), output, all, func(w io.Writer) { flowTable(w, all) })
		},
	}
	s.addFlags(cmd)
	addOutputFlag(cmd, &output)
	return cmd
}

func newFlowFlushCommand() *cobra.Command {
	var s flowSource
	var everything bool
	cmd := &cobra.Command{
		Use: "flush", Short: "Have flows forgotten",
		Long: `Has the flows of clients outside of the cluster forgotten. What a client sends
next is of a new flow, and may reach another backend: TCP connections break that
the new backend does not know.

Of Services by DSR whose flows need no records (docs/balancer.md) there are records
only in slots that have changed since, and there whatever has no record goes to the
backend from before the change. So connections that began after it break.
"beeline status" says how many slots have changed.

Which flows is said by --service or --backend, or both; --all is for all that there are.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			some := s.service != "" || s.backend != ""
			if some == everything {
				return exitError{exitUsage, errors.New("say which flows are to be forgotten: --service or --backend, or else --all, which breaks connections of all clients")}
			}
			backend, err := s.ofBackend()
			if err != nil {
				return err
			}
			flows, names, err := s.open()
			if err != nil {
				return err
			}
			n, err := observe.FlushFlows(flows, observe.NamedService(names, s.service), backend)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "forgot %d flows\n", n)
			return err
		},
	}
	s.addFlags(cmd)
	cmd.Flags().BoolVar(&everything, "all", false, "all flows of all clients")
	return cmd
}

func flowTable(w io.Writer, flows []observe.Flow) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SERVICE\tPROTOCOL\tCLIENT\tADDRESS\tBACKEND\tSEEN AS\tSTATE\tIDLE\tSENT\tRECEIVED")
	for _, f := range flows {
		via := "client"
		if f.Via.IsValid() {
			via = f.Via.String()
		}
		if f.DSR != "" {
			via += " (DSR " + f.DSR + ")"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d (%d bytes)\t%d (%d bytes)\n", f.Service, f.Protocol, f.Client, f.Address, f.Backend,
			via, f.State, time.Duration(f.IdleSeconds*float64(time.Second)), f.Sent.Packets, f.Sent.Bytes, f.Received.Packets, f.Received.Bytes)
	}
	t.Flush()
}
