// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/agent"
	"beeline.io/beeline/internal/observe"
	"beeline.io/beeline/internal/printable"
	"beeline.io/beeline/internal/service"
)

func newServiceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "service", Short: "Show Services as the tables have them", Aliases: []string{"services", "svc"},
		Args: knownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var l lookup
	list := &cobra.Command{
		Use: "list", Short: "List all addresses of all Services, and what each kind of client meets there",
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			tables, err := l.countedTables(cmd.Context())
			if err != nil {
				return err
			}
			return write(cmd.OutOrStdout(), l.output, tables.Services, func(w io.Writer) {
				if l.output == "wide" {
					counterTable(w, tables)
				} else {
					serviceTable(w, tables)
				}
			})
		},
	}
	l.addFlags(list)
	addWideOutput(list, &l.output)
	var s lookup
	show := &cobra.Command{
		Use: "show [NAMESPACE/]NAME", Short: "Show one Service with its backends",
		Args: usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			tables, err := s.read(cmd.Context(), agent.ServicePath(args[0]), observe.Scope{Service: args[0]})
			if err != nil {
				return err
			}
			found, err := tables.Find(args[0])
			if err != nil {
				return err
			}
			return write(cmd.OutOrStdout(), s.output, found, func(w io.Writer) { serviceDetails(w, found, tables.OutsideServed) })
		},
	}
	s.addFlags(show)
	cmd.AddCommand(list, show)
	return cmd
}

func serviceTable(w io.Writer, tables *observe.Tables) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tKIND\tADDRESS\tPROTOCOL\tFROM PODS\tFROM NODE\tFROM OUTSIDE\tSTATE")
	for i := range tables.Services {
		s := &tables.Services[i]
		for _, f := range s.Frontends {
			address := f.Address
			if f.Kind == service.ClusterIPOther {
				address += " (other ports)"
			}
			fmt.Fprintf(t, "%s/%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Namespace, s.Name, shortKind(f.Kind), address, f.Protocol,
				served(f, f.Pod, service.FromPod, tables.OutsideServed), served(f, f.Node, service.FromNode, tables.OutsideServed),
				served(f, f.Outside, service.FromOutside, tables.OutsideServed), s.State)
		}
		if len(s.Frontends) == 0 {
			fmt.Fprintf(t, "%s/%s\t-\t-\t-\t-\t-\t-\t%s\n", s.Namespace, s.Name, s.State)
		}
	}
	t.Flush()
}

// notServed is printed for what is decided, but has no program that acts on it: clients
// from outside, and all of SCTP and ICMP echo, where the agent's --edge-mode is off; and SCTP where
// each backend has another port, for its ports are never translated.
const notServed = "not served"

func served(f observe.Frontend, d observe.Decision, class service.SourceClass, outside bool) string {
	if !outside && (class == service.FromOutside || f.Protocol == service.SCTP || f.Kind == service.Echo) {
		return notServed
	}
	if f.Protocol == service.SCTP && len(d.Backends) > 0 && !slices.ContainsFunc(d.Backends, func(b observe.Member) bool { return portOf(b.Address) == portOf(f.Address) }) {
		return notServed
	}
	return d.String()
}

func portOf(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }

func shortKind(k service.FrontendKind) string {
	if k == service.ClusterIPOther {
		return service.ClusterIP.String()
	}
	return k.String()
}

func serviceDetails(w io.Writer, s *observe.Service, outside bool) {
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
		fmt.Fprintf(w, "  problem: %s\n", printable.Line(problem))
	}
	for _, refusal := range s.Refusals {
		fmt.Fprintf(w, "  clients refused: %s\n", refusal)
	}
	serviceHealth(w, s.Health)
	for _, b := range s.Leaving {
		fmt.Fprintf(w, "  %s/%s: %s\n", b.Address, b.Protocol, b)
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
			fmt.Fprintf(w, "    backends on other nodes answer clients outside themselves: DSR (%s)\n", f.DSR)
		}
		decisions(w, f, outside)
		for _, b := range f.Kept {
			fmt.Fprintf(w, "    flows stay with %s%s, id %d\n", b.Address, onThisNode(b), b.ID)
		}
	}
}

func algorithmText(s *observe.Service) string {
	if s.Algorithm != service.Maglev {
		return string(s.Algorithm)
	}
	return fmt.Sprintf("%s, tables of %d slots", s.Algorithm, s.TableSize)
}

// decisions prints classes that meet the same together.
func decisions(w io.Writer, f observe.Frontend, outside bool) {
	classes := map[string][]string{}
	var order []string
	for _, d := range []struct {
		class    service.SourceClass
		decision observe.Decision
	}{{service.FromPod, f.Pod}, {service.FromNode, f.Node}, {service.FromOutside, f.Outside}} {
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

func decisionText(d observe.Decision, note string) string {
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
