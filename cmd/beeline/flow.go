// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/offline"
	"beeline.io/beeline/internal/util/plural"
	"beeline.io/beeline/internal/util/suggest"
)

// flowSource selects flows in the pinned tables. It needs no agent.
type flowSource struct{ pins, service, backend string }

func (s *flowSource) addFlags(cmd *cobra.Command) {
	addPinsFlags(cmd, &s.pins)
	cmd.Flags().StringVar(&s.service, "service", "", "only flows of this Service: namespace/name, or a name that no other has")
	cmd.Flags().StringVar(&s.backend, "backend", "", "only flows to this backend: an address, or address:port")
}

// ofBackend returns a filter for the backend of --backend, or nil without that flag.
func (s *flowSource) ofBackend() (func(netip.AddrPort) bool, error) {
	if s.backend == "" {
		return nil, nil
	}
	if addr, err := netip.ParseAddr(s.backend); err == nil {
		return func(a netip.AddrPort) bool { return a.Addr() == addr.Unmap() }, nil
	}
	end, err := netip.ParseAddrPort(s.backend)
	if err != nil {
		return nil, exitError{exitUsage, fmt.Errorf("--backend %q: not an address or address:port such as 10.0.0.1:8080 or [fd00::1]:8080", s.backend)}
	}
	return func(a netip.AddrPort) bool { return a == netip.AddrPortFrom(end.Addr().Unmap(), end.Port()) }, nil
}

// open returns the flows and the names of Services, and completes the name of --service. An unknown one is a usage
// error.
func (s *flowSource) open() (*conntrack.Tables, map[uint32]bpf.ServiceName, error) {
	if s.service != "" && strings.Count(s.service, "/") > 1 {
		return nil, nil, exitError{exitUsage, fmt.Errorf("--service %q: not of the form namespace/name or name", s.service)}
	}
	flows, err := conntrack.Open(s.pins)
	if err != nil {
		return nil, nil, err
	}
	tables, err := bpf.OpenTables(s.pins)
	if err != nil {
		return nil, nil, err
	}
	names, err := tables.Services.All()
	if err == nil && s.service != "" {
		s.service, err = offline.FindService(names, s.service)
	}
	if wrong := (*api.RequestError)(nil); errors.As(err, &wrong) {
		err = exitError{exitUsage, err}
	}
	return flows, names, err
}

func newFlowCommand() *cobra.Command {
	cmd := commandGroup("flow", "Show or flush the flows of clients outside the cluster", newFlowListCommand(), newFlowFlushCommand())
	cmd.Aliases = []string{"flows"}
	return cmd
}

// states returns the names of --state, in the order of a flow's life.
func states() (names []string) {
	for _, state := range slices.Sorted(maps.Keys(conntrack.StateNames)) {
		names = append(names, conntrack.StateNames[state])
	}
	return names
}

// checkStates refuses names that no flow has.
func checkStates(wanted []string) error {
	for _, name := range wanted {
		if all := states(); !slices.Contains(all, name) {
			return exitError{exitUsage, fmt.Errorf("--state %q: no state of a flow; the states are %s%s", name, strings.Join(all, ", "), suggest.DidYouMean(name, all))}
		}
	}
	return nil
}

func newFlowListCommand() *cobra.Command {
	var s flowSource
	var only []string
	var v view
	cmd := &cobra.Command{
		Use: "list", Short: "List the flows with their backends",
		Long: `Lists the flows of clients outside the cluster, from the pinned tables: the client,
the Service's address, the backend, and the source address that the backend sees.
-o wide adds packet and byte counts.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("state") && len(only) == 0 {
				return exitError{exitUsage, fmt.Errorf("--state is empty: give one or more of %s, or leave it out for all", strings.Join(states(), ", "))}
			}
			backend, err := s.ofBackend()
			if err := errors.Join(err, checkStates(only)); err != nil {
				return err
			}
			s.service = v.inNamespace(s.service)
			return v.show(cmd, func() (any, func(io.Writer), error) {
				flows, names, err := s.open()
				if err != nil {
					return nil, nil, err
				}
				all, err := conntrack.List(flows, offline.PortNames(names))
				if err != nil {
					return nil, nil, err
				}
				all = slices.DeleteFunc(all, func(f conntrack.Flow) bool {
					return s.service != "" && f.Service != s.service || backend != nil && !backend(f.Backend) || len(only) > 0 && !slices.Contains(only, f.State) || !v.of(f.Service)
				})
				v.nothing(cmd, len(all), "flows of Services")
				return all, func(w io.Writer) { flowTable(w, all, &v) }, nil
			})
		},
	}
	s.addFlags(cmd)
	cmd.Flags().StringSliceVar(&only, "state", nil, "only flows in one of these `states`: "+strings.Join(states(), ", "))
	cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(states(), cobra.ShellCompDirectiveNoFileComp))
	v.addListFlags(cmd)
	return cmd
}

func newFlowFlushCommand() *cobra.Command {
	var s flowSource
	var everything bool
	cmd := &cobra.Command{
		Use: "flush", Short: "Remove conntrack entries of flows",
		Long: `Removes the conntrack entries of flows of clients outside the cluster. The client's next
packet starts a new flow, and may reach another backend; a TCP connection that the new
backend does not know breaks.

Services with DSR whose flows need no conntrack entries (docs/operate/dsr.md) have entries
only in slots that have changed since. There, a flow without an entry goes to the
backend from before the change, so connections opened after the change break.
"beeline status -v" says how many slots have changed.

Select flows by --service, --backend or both; --all selects all flows.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			some := s.service != "" || s.backend != ""
			if some == everything {
				return exitError{exitUsage, errors.New("give --service, --backend or both; or else --all, which breaks connections of all clients")}
			}
			backend, err := s.ofBackend()
			if err != nil {
				return err
			}
			flows, names, err := s.open()
			if err != nil {
				return err
			}
			n, err := conntrack.Flush(flows, offline.NamedService(names, s.service), backend)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "removed %s\n", plural.Of(n, "flow"))
			return err
		},
	}
	s.addFlags(cmd)
	cmd.Flags().BoolVar(&everything, "all", false, "all flows of all clients")
	return cmd
}

// flowTable prints flows; -o wide adds packet and byte counts.
func flowTable(w io.Writer, flows []conntrack.Flow, v *view) {
	columns := []string{"SERVICE", "PROTOCOL", "CLIENT", "ADDRESS", "BACKEND", "SEEN AS", "STATE", "IDLE"}
	wide := v.output == "wide"
	if wide {
		columns = append(columns, "SENT", "RECEIVED")
	}
	t := newTable(w, !v.noHeaders, columns...)
	for _, f := range flows {
		via := "client"
		if f.SeenAs.IsValid() {
			via = f.SeenAs.String()
		}
		if f.DSR != "" {
			via += " (DSR " + f.DSR + ")"
		}
		row := []string{f.Service, f.Protocol.String(), f.Client.String(), f.Address.String(), f.Backend.String(), via, f.State,
			time.Duration(f.IdleSeconds * float64(time.Second)).String()}
		if wide {
			row = append(row, trafficText(f.FromClient), trafficText(f.ToClient))
		}
		t.row(row)
	}
	t.Flush()
}
