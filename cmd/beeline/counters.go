// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"beeline.io/beeline/internal/agent"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/inspect"
	"beeline.io/beeline/internal/service"
)

// countedTables returns the tables, with the edge's counters of each Service if the output format shows them.
func (l *lookup) countedTables(ctx context.Context) (*inspect.Tables, error) {
	if l.output == "table" {
		return l.tables(ctx)
	}
	if !l.fromPins {
		var tables inspect.Tables
		return &tables, l.ask(ctx, agent.CountedTablesPath, &tables)
	}
	tables, err := l.tables(ctx)
	if err != nil {
		return nil, err
	}
	raw, err := datapath.OpenTables(l.pins)
	if err != nil {
		return nil, err
	}
	names, err := raw.Services.All()
	if err != nil {
		return nil, err
	}
	return tables, tables.AddCounters(l.pins, names)
}

// wideCells returns the cells that -o wide adds for a frontend. Counters are per port, so only the first
// frontend of each port shows them; counted holds the ports already shown.
func wideCells(s *inspect.Service, f inspect.Frontend, counted map[string]bool) []string {
	affinity := "-"
	if f.AffinitySeconds > 0 {
		affinity = (time.Duration(f.AffinitySeconds) * time.Second).String()
	}
	cells := []string{cmp.Or(f.Port, "-"), cmp.Or(string(s.Algorithm), "-"), affinity, cmp.Or(string(f.DSR), "-")}
	port := f.Port + "/" + f.Protocol.String()
	i := slices.IndexFunc(s.Counters, func(c inspect.PortCounters) bool { return c.Port == f.Port && c.Protocol == f.Protocol })
	if i < 0 || counted[port] || f.Kind == service.ClusterIPOther || f.Kind == service.Echo {
		return append(cells, "-", "-", "-", "-", "-")
	}
	counted[port] = true
	c := s.Counters[i]
	return append(cells, fmt.Sprint(c.Flows), fmt.Sprint(c.Refused), fmt.Sprint(c.Dropped), trafficText(c.Sent), trafficText(c.Received))
}

func trafficText(t conntrack.Traffic) string { return fmt.Sprintf("%d (%d bytes)", t.Packets, t.Bytes) }
