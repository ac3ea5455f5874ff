// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/agent"
	"beeline.io/beeline/internal/observe"
)

func newBackendCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "backend", Short: "Show backends as the tables have them", Aliases: []string{"backends"},
		Args: knownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var l lookup
	list := &cobra.Command{
		Use: "list", Short: "List all backends and the Services that lead to them",
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			tables, err := l.read(cmd.Context(), agent.BackendsPath, observe.Scope{Outline: true, Owners: true})
			if err != nil {
				return err
			}
			all := backendList(tables)
			return write(cmd.OutOrStdout(), l.output, all, func(w io.Writer) { backendTable(w, all) })
		},
	}
	l.addFlags(list)
	cmd.AddCommand(list)
	return cmd
}

// listedBackend is one of the tables, or one that leaves and has no number there.
type listedBackend struct {
	observe.Backend
	Leaving *observe.Leaving `json:"leaving,omitempty"`
}

func backendList(tables *observe.Tables) []listedBackend {
	all := make([]listedBackend, 0, len(tables.Backends)+len(tables.Leaving))
	for _, b := range tables.Backends {
		all = append(all, listedBackend{Backend: b})
	}
	for _, b := range tables.Leaving {
		all = append(all, listedBackend{observe.Backend{Address: b.Address.String(), Protocol: b.Protocol, Services: []string{}}, &b})
	}
	return all
}

func backendTable(w io.Writer, backends []listedBackend) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tADDRESS\tPROTOCOL\tON THIS NODE\tSERVICES")
	for _, b := range backends {
		if b.Leaving != nil {
			fmt.Fprintf(t, "-\t%s\t%s\t-\t%s\n", b.Address, b.Protocol, b.Leaving)
			continue
		}
		local := "no"
		if b.Local {
			local = "yes"
		}
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\n", b.ID, b.Address, b.Protocol, local, strings.Join(b.Services, ", "))
	}
	t.Flush()
}

// onThisNode says whether a backend is; and on which else, if that matters.
func onThisNode(b observe.Member) string {
	switch {
	case b.Local:
		return ", on this node"
	case b.Node != "":
		return ", on the node " + b.Node
	}
	return ""
}
