// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/offline"
	"beeline.io/beeline/internal/util/printable"
)

func newBackendCommand() *cobra.Command {
	var l lookup
	list := &cobra.Command{
		Use: "list", Short: "List all backends and the Services that use them",
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return l.show(cmd, func() (any, func(io.Writer), error) {
				tables, err := l.read(cmd.Context(), api.BackendsPath, offline.Scope{Outline: true, Owners: true})
				if err != nil {
					return nil, nil, err
				}
				all := backendList(tables)
				if l.namespace != "" {
					all = slices.DeleteFunc(all, func(b listedBackend) bool { return !slices.ContainsFunc(b.Services, l.of) })
				}
				l.nothing(cmd, len(all), "backends")
				return all, func(w io.Writer) { backendTable(w, all, &l.view) }, nil
			})
		},
	}
	l.addSourceFlags(list)
	l.addListFlags(list)
	cmd := commandGroup("backend", "Show backends as programmed in the tables", list)
	cmd.Aliases = []string{"backends"}
	return cmd
}

// listedBackend is a backend in the tables, or a draining one, which has no ID there.
type listedBackend struct {
	api.Backend
	Draining *api.Draining `json:"draining,omitempty"`
}

func backendList(tables *api.Tables) []listedBackend {
	all := make([]listedBackend, 0, len(tables.Backends)+len(tables.Draining))
	for _, b := range tables.Backends {
		all = append(all, listedBackend{Backend: b})
	}
	for _, b := range tables.Draining {
		all = append(all, listedBackend{api.Backend{Address: b.Address.String(), Protocol: b.Protocol, Services: []string{}}, &b})
	}
	return all
}

// backendTable prints backends. -o wide adds the node of backends that get encapsulated packets, and the
// remaining connections of draining backends.
func backendTable(w io.Writer, backends []listedBackend, v *view) {
	columns := []string{"ID", "ADDRESS", "PROTOCOL", "ON THIS NODE", "SERVICES"}
	wide := v.output == "wide"
	if wide {
		columns = append(columns, "NODE", "CONNECTIONS LEFT")
	}
	t := newTable(w, !v.noHeaders, columns...)
	for _, b := range backends {
		row := []string{fmt.Sprint(b.ID), b.Address, b.Protocol.String(), map[bool]string{true: "yes", false: "no"}[b.Local], strings.Join(b.Services, ", ")}
		connections := "-"
		if b.Draining != nil {
			row = []string{"-", b.Address, b.Protocol.String(), "-", printable.Line(b.Draining.String())}
			connections = fmt.Sprint(b.Draining.Connections)
		}
		if wide {
			row = append(row, cmp.Or(b.NodeAddress, "-"), connections)
		}
		t.row(row)
	}
	t.Flush()
}

// onThisNode returns text for a backend on this node, or with its node if it gets encapsulated packets.
func onThisNode(b api.Member) string {
	switch {
	case b.Local:
		return ", on this node"
	case b.NodeAddress != "":
		return ", on the node " + b.NodeAddress
	}
	return ""
}
