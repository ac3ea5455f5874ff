// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/offline"
	"beeline.io/beeline/internal/util/printable"
)

func newServiceCommand() *cobra.Command {
	cmd := commandGroup("service", "Show Services as programmed in the tables", newServiceListCommand(), newServiceShowCommand())
	cmd.Aliases = []string{"services", "svc"}
	return cmd
}

func newServiceListCommand() *cobra.Command {
	var l lookup
	cmd := &cobra.Command{
		Use: "list", Short: "List all addresses of all Services, and what each class of client gets there",
		Long: `Lists all addresses of all Services, and what each class of client gets there.
-o wide adds columns, among them the traffic of clients outside the cluster, and new, failed and open
TCP connections of programs on this node. They are shown at the first address of each port, and summed
over the port's addresses.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return l.show(cmd, func() (any, func(io.Writer), error) {
				tables, err := l.countedTables(cmd.Context())
				if err != nil {
					return nil, nil, err
				}
				tables.Services = slices.DeleteFunc(tables.Services, func(s api.Service) bool { return !l.names(s.Namespace) })
				l.nothing(cmd, len(tables.Services), "Services")
				return tables.Services, func(w io.Writer) { serviceTable(w, tables, &l.view) }, nil
			})
		},
	}
	l.addSourceFlags(cmd)
	l.addListFlags(cmd)
	return cmd
}

func newServiceShowCommand() *cobra.Command {
	var l lookup
	cmd := &cobra.Command{
		Use: "show [NAMESPACE/]NAME", Short: "Show one Service with its backends",
		Args: usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := l.inNamespace(args[0])
			if !l.of(name) && strings.Contains(name, "/") {
				return exitError{exitUsage, fmt.Errorf("%s is not in the namespace of --namespace %s: remove one of them", name, l.namespace)}
			}
			return l.show(cmd, func() (any, func(io.Writer), error) {
				tables, err := l.read(cmd.Context(), api.ServicePath(name), offline.Scope{Service: name})
				if err != nil {
					return nil, nil, err
				}
				found, err := tables.Find(name)
				return found, func(w io.Writer) { serviceDetails(w, found, tables.OutsideServed) }, err
			})
		},
	}
	l.addFlags(cmd)
	cmd.Flags().StringVarP(&l.namespace, "namespace", "n", "", "namespace of the Service, if NAME has none")
	l.addWatch(cmd)
	return cmd
}

// The columns of service list, and those that -o wide adds.
var (
	serviceColumns     = []string{"NAME", "KIND", "ADDRESS", "PROTOCOL", "FROM PODS", "FROM NODE", "FROM OUTSIDE", "STATE"}
	wideServiceColumns = []string{"PORT", "ALGORITHM", "AFFINITY", "DSR", "NEW FLOWS", "REFUSED", "DROPPED", "SENT BY CLIENTS", "SENT TO CLIENTS",
		"NEW CONNECTIONS", "FAILED", "OPEN"}
)

func serviceTable(w io.Writer, tables *api.Tables, v *view) {
	columns := serviceColumns
	if v.output == "wide" {
		columns = slices.Concat(serviceColumns, wideServiceColumns)
	}
	t := newTable(w, !v.noHeaders, columns...)
	for i := range tables.Services {
		s := &tables.Services[i]
		counted := map[string]bool{}
		for _, f := range s.Frontends {
			row := []string{s.Namespace + "/" + s.Name, shortKind(f.Kind), addressText(f), f.Protocol.String(),
				served(f, f.FromPods, service.FromPod, tables.OutsideServed), served(f, f.FromNode, service.FromNode, tables.OutsideServed),
				served(f, f.FromOutside, service.FromOutside, tables.OutsideServed), string(s.State)}
			if v.output == "wide" {
				row = append(row, wideCells(s, f, counted)...)
			}
			t.row(row)
		}
		if len(s.Frontends) == 0 {
			row := slices.Repeat([]string{"-"}, len(columns))
			row[0], row[len(serviceColumns)-1] = s.Namespace+"/"+s.Name, string(s.State)
			t.row(row)
		}
	}
	t.Flush()
}

func addressText(f api.Frontend) string {
	if f.Kind == service.ClusterIPOtherPorts {
		return f.Address + " (other ports)"
	}
	return f.Address
}

// notServed marks decisions that no program applies: clients outside the cluster, SCTP and ICMP echo with
// --edge-mode=off; and SCTP if a backend's port differs from the Service's, because SCTP ports are never
// translated.
const notServed = "not served"

func served(f api.Frontend, d api.Decision, class service.SourceClass, outside bool) string {
	if !outside && (class == service.FromOutside || f.Protocol == service.SCTP || f.Kind == service.Echo) {
		return notServed
	}
	if f.Protocol == service.SCTP && len(d.Backends) > 0 && !slices.ContainsFunc(d.Backends, func(b api.Member) bool { return portOf(b.Address) == portOf(f.Address) }) {
		return notServed
	}
	return d.String()
}

func portOf(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }

func shortKind(k service.FrontendKind) string {
	if k == service.ClusterIPOtherPorts {
		return service.ClusterIP.String()
	}
	return k.String()
}

func serviceDetails(w io.Writer, s *api.Service, outside bool) {
	fmt.Fprintf(w, "%s\n", s.Ref())
	if s.State != "" {
		fmt.Fprintf(w, "  state: %s\n", s.State)
	}
	if s.Algorithm != "" {
		fmt.Fprintf(w, "  algorithm: %s\n", algorithmText(s))
	}
	for _, reason := range s.Reasons {
		fmt.Fprintf(w, "  failed: %s\n", printable.Line(reason))
	}
	for _, problem := range s.Problems {
		fmt.Fprintf(w, "  problem: %s\n", printable.Line(problem.Text()))
	}
	for _, refusal := range s.Refusals {
		fmt.Fprintf(w, "  clients rejected: %s\n", refusal)
	}
	serviceHealth(w, s.Health)
	for _, b := range s.Draining {
		fmt.Fprintf(w, "  %s/%s: %s\n", b.Address, b.Protocol, printable.Line(b.String()))
	}
	for i := range s.Connections {
		printConnections(w, &s.Connections[i])
	}
	for _, f := range s.Frontends {
		fmt.Fprintf(w, "\n  %s %s/%s", f.Kind, f.Address, f.Protocol)
		if f.Port != "" {
			fmt.Fprintf(w, " (port %s)", f.Port)
		}
		fmt.Fprintln(w)
		if f.AffinitySeconds > 0 {
			fmt.Fprintf(w, "    session affinity: %s\n", time.Duration(f.AffinitySeconds)*time.Second)
		}
		if f.Restricted {
			fmt.Fprintf(w, "    admitted sources: %s\n", strings.Join(f.SourceRanges, ", "))
		}
		if f.DSR != "" {
			fmt.Fprintf(w, "    DSR (%s): backends on other nodes answer clients outside the cluster directly\n", f.DSR)
		}
		decisions(w, f, outside)
		for _, b := range f.RetainedBackends {
			fmt.Fprintf(w, "    flows stay with %s%s, id %d\n", b.Address, onThisNode(b), b.ID)
		}
	}
}

// printConnections prints the connections of programs on this node to a port, and to its backends.
func printConnections(w io.Writer, c *api.PortConnections) {
	port := ""
	if c.Port != "" {
		port = " to port " + c.Port
	}
	fmt.Fprintf(w, "  connections of this node%s: %s\n", port, connectionsText(&c.Connections))
	for i := range c.Backends {
		fmt.Fprintf(w, "    %s: %s\n", c.Backends[i].Address, connectionsText(&c.Backends[i].Connections))
	}
}

func algorithmText(s *api.Service) string {
	if s.Algorithm != service.Maglev {
		return string(s.Algorithm)
	}
	return fmt.Sprintf("%s, tables of %d slots", s.Algorithm, s.MaglevTableSize)
}

// decisions prints the decisions, with client classes that get the same one on one line.
func decisions(w io.Writer, f api.Frontend, outside bool) {
	classes := map[string][]string{}
	var order []string
	for _, d := range []struct {
		class    service.SourceClass
		decision api.Decision
	}{{service.FromPod, f.FromPods}, {service.FromNode, f.FromNode}, {service.FromOutside, f.FromOutside}} {
		note := ""
		if served(f, d.decision, d.class, outside) == notServed {
			note = " (" + notServed + ")"
		}
		text := decisionText(d.decision, note)
		if classes[text] == nil {
			order = append(order, text)
		}
		classes[text] = append(classes[text], d.class.String())
	}
	for _, text := range order {
		fmt.Fprintf(w, "    from %s: %s\n", strings.Join(classes[text], ", "), text)
	}
}

func decisionText(d api.Decision, note string) string {
	slots := 0
	for _, b := range d.Backends {
		slots += b.Slots
	}
	lines := []string{d.String() + note}
	for _, b := range d.Backends {
		lines = append(lines, fmt.Sprintf("      %-24s share %d/%d, id %d%s", b.Address, b.Slots, slots, b.ID, onThisNode(b)))
	}
	return strings.Join(lines, "\n")
}
