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
			return write(cmd.OutOrStdout(), l.output, tables.Backends, func(w io.Writer) { backendTable(w, tables.Backends) })
		},
	}
	l.addFlags(list)
	cmd.AddCommand(list)
	return cmd
}

func backendTable(w io.Writer, backends []observe.Backend) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tADDRESS\tPROTOCOL\tON THIS NODE\tSERVICES")
	for _, b := range backends {
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
