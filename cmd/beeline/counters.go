// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"beeline.io/beeline/internal/agent"
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/observe"
)

// countedTables are the tables with what the edge counts for each Service, unless
// nobody is to see that.
func (l *lookup) countedTables(ctx context.Context) (*observe.Tables, error) {
	if l.output == "table" {
		return l.tables(ctx)
	}
	if !l.fromMaps {
		var tables observe.Tables
		return &tables, l.ask(ctx, agent.CountedTablesPath, &tables)
	}
	tables, err := l.tables(ctx)
	if err != nil {
		return nil, err
	}
	raw, err := datapath.OpenTables(l.bpffs)
	if err != nil {
		return nil, err
	}
	names, err := raw.Services.All()
	if err != nil {
		return nil, err
	}
	return tables, tables.AddCounters(l.bpffs, names)
}

// counterTable prints what the edge has counted.
func counterTable(w io.Writer, tables *observe.Tables) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tPORT\tPROTOCOL\tNEW FLOWS\tREFUSED\tDROPPED\tSENT BY CLIENTS\tSENT TO CLIENTS")
	for i := range tables.Services {
		s := &tables.Services[i]
		for _, c := range s.Counters {
			port := c.Port
			if port == "" {
				port = "-"
			}
			fmt.Fprintf(t, "%s/%s\t%s\t%s\t%d\t%d\t%d\t%d (%d bytes)\t%d (%d bytes)\n", s.Namespace, s.Name, port, c.Protocol,
				c.Flows, c.Refused, c.Dropped, c.Sent.Packets, c.Sent.Bytes, c.Received.Packets, c.Received.Bytes)
		}
	}
	t.Flush()
}
