// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/util/printable"
)

func newOffloadCommand() *cobra.Command {
	return commandGroup("offload", "Show flow offload: forwarded flows that skip the IP stack", newOffloadStatusCommand(), newOffloadFlowsCommand())
}

func newOffloadStatusCommand() *cobra.Command {
	var socket string
	var v view
	cmd := &cobra.Command{
		Use: "status", Short: "Show the offload provider, devices, and what keeps flows on the stack",
		Long: `Shows what forwards the offload flows, at which devices, how many flows there are,
why flows have left it, and why others stay on the stack.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return v.show(cmd, func() (any, func(io.Writer), error) {
				var s api.Status
				if err := (question{socket: socket}).get(cmd.Context(), api.StatusPath, &s); err != nil {
					return nil, nil, err
				}
				if s.Offload == nil {
					return nil, nil, errors.New("flow offload is off: set --offload-devices of the agent")
				}
				return s.Offload, func(w io.Writer) { statusOffload(w, s.Offload) }, nil
			})
		},
	}
	cmd.Flags().StringVar(&socket, socketFlag, api.DefaultSocket, "unix socket of the agent")
	v.addFlags(cmd)
	return cmd
}

// statusOffload prints the state of flow offload.
func statusOffload(w io.Writer, s *api.Offload) {
	if s == nil {
		return
	}
	fmt.Fprintf(w, "\nOffload: %s\n", s.Line())
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if s.Provider != "" && s.Why != "" {
		fmt.Fprintf(t, "  provider\t%s\t%s\n", s.Provider, printable.Line(s.Why))
	}
	for _, f := range s.PacketFilters {
		fmt.Fprintf(t, "  filter\t\t%s\n", printable.Line(f))
	}
	for _, reason := range slices.Sorted(maps.Keys(s.RefusedDirections)) {
		fmt.Fprintf(t, "  refused\t%d\t%s\n", s.RefusedDirections[reason], printable.Line(reason))
	}
	for _, reason := range slices.Sorted(maps.Keys(s.EndedEntries)) {
		if s.EndedEntries[reason] == 0 {
			continue
		}
		fmt.Fprintf(t, "  ended\t%d\t%s\n", s.EndedEntries[reason], reason)
	}
	for _, path := range slices.Sorted(maps.Keys(s.Packets)) {
		if n := s.Packets[path]; n > 0 {
			fmt.Fprintf(t, "  packets\t%d\t%s\n", n, path)
		}
	}
	t.Flush()
}

func newOffloadFlowsCommand() *cobra.Command {
	var socket, end string
	var v view
	cmd := &cobra.Command{
		Use: "flows", Short: "List the flows that this node forwards, and the path of their packets",
		Long: `Lists the TCP and UDP flows of the kernel's conntrack that this node forwards, with their
state there and the path of the packets of each direction: slow (the stack), cache,
flowtable, hardware, or refused with the reason. -o wide adds the packets and bytes that have left the stack.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			of, err := endFilter(end)
			if err != nil {
				return err
			}
			return v.show(cmd, func() (any, func(io.Writer), error) {
				var all []api.OffloadFlow
				q := question{socket: socket, enable: "set --offload-devices of the agent"}
				if err := q.get(cmd.Context(), api.OffloadFlowsPath, &all); err != nil {
					return nil, nil, err
				}
				all = slices.DeleteFunc(all, func(f api.OffloadFlow) bool {
					return !of(f.Client) && !of(f.Address) && !of(f.SeenAs) && !of(f.Backend)
				})
				v.nothing(cmd, len(all), "flows that this node forwards")
				return all, func(w io.Writer) { offloadFlowTable(w, all, &v) }, nil
			})
		},
	}
	cmd.Flags().StringVar(&socket, socketFlag, api.DefaultSocket, "unix socket of the agent")
	cmd.Flags().StringVar(&end, "address", "", "only flows of which one end is this: an address, or address:port")
	v.addListFlags(cmd)
	return cmd
}

// endFilter returns a filter for --address.
func endFilter(text string) (func(netip.AddrPort) bool, error) {
	if text == "" {
		return func(netip.AddrPort) bool { return true }, nil
	}
	if addr, err := netip.ParseAddr(text); err == nil {
		return func(a netip.AddrPort) bool { return a.Addr() == addr.Unmap() }, nil
	}
	end, err := netip.ParseAddrPort(text)
	if err != nil {
		return nil, exitError{exitUsage, fmt.Errorf("--address %q: not an address or address:port such as 10.0.0.1:8080 or [fd00::1]:8080", text)}
	}
	return func(a netip.AddrPort) bool { return a == netip.AddrPortFrom(end.Addr().Unmap(), end.Port()) }, nil
}

// offloadFlowTable prints flows; -o wide adds what has left the stack, and the devices.
func offloadFlowTable(w io.Writer, flows []api.OffloadFlow, v *view) {
	columns := []string{"PROTOCOL", "CLIENT", "ADDRESS", "VIA", "BACKEND", "STATE", "SENT BY", "RECEIVED BY"}
	wide := v.output == "wide"
	if wide {
		columns = append(columns, "SENT", "RECEIVED", "DEVICES")
	}
	t := newTable(w, !v.noHeaders, columns...)
	for _, f := range flows {
		row := []string{f.Protocol, f.Client.String(), f.Address.String(), f.SeenAs.String(), f.Backend.String(), f.State, pathText(f.FromClient), pathText(f.ToClient)}
		if wide {
			in, out := cmp.Or(f.FromClient.InDevice, f.ToClient.OutDevice, "-"), cmp.Or(f.FromClient.OutDevice, f.ToClient.InDevice, "-")
			row = append(row, trafficText(conntrack.Traffic{Packets: f.FromClient.Packets, Bytes: f.FromClient.Bytes}),
				trafficText(conntrack.Traffic{Packets: f.ToClient.Packets, Bytes: f.ToClient.Bytes}), in+" > "+out)
		}
		t.row(row)
	}
	t.Flush()
}

func pathText(d api.FlowDirection) string {
	if d.Reason != "" {
		return string(d.Path) + ": " + d.Reason
	}
	return string(d.Path)
}
