// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/offline"
	"beeline.io/beeline/internal/util/plural"
)

// countedTables returns the tables, with the edge's counters of each Service if the output format shows them.
func (l *lookup) countedTables(ctx context.Context) (*api.Tables, error) {
	if l.output == "table" {
		return l.tables(ctx)
	}
	if !l.fromPins {
		var tables api.Tables
		return &tables, l.ask(ctx, api.CountedTablesPath, &tables)
	}
	tables, err := l.tables(ctx)
	if err != nil {
		return nil, err
	}
	raw, err := bpf.OpenTables(l.pins)
	if err != nil {
		return nil, err
	}
	names, err := raw.Services.All()
	if err != nil {
		return nil, err
	}
	if err := offline.AddConnections(tables, l.pins, names); err != nil {
		return nil, err
	}
	return tables, offline.AddCounters(tables, l.pins, names)
}

// addConnections adds the statistics of sockets that are pinned in a directory.
func addConnections(tables *api.Tables, raw *bpf.Tables, pins string) error {
	names, err := raw.Services.All()
	if err != nil {
		return err
	}
	return offline.AddConnections(tables, pins, names)
}

// wideCells returns the cells that -o wide adds for a frontend. Counters are per port, so only the first
// frontend of each port shows them; counted holds the ports already shown.
func wideCells(s *api.Service, f api.Frontend, counted map[string]bool) []string {
	affinity := "-"
	if f.AffinitySeconds > 0 {
		affinity = (time.Duration(f.AffinitySeconds) * time.Second).String()
	}
	cells := []string{cmp.Or(f.Port, "-"), cmp.Or(string(s.Algorithm), "-"), affinity, cmp.Or(string(f.DSR), "-")}
	port := f.Port + "/" + f.Protocol.String()
	if counted[port] || f.Kind == service.ClusterIPOtherPorts || f.Kind == service.Echo {
		return append(cells, "-", "-", "-", "-", "-", "-", "-", "-")
	}
	counted[port] = true
	return append(append(cells, edgeCells(s, f)...), connectionCells(s, f)...)
}

func edgeCells(s *api.Service, f api.Frontend) []string {
	for _, c := range s.EdgeCounters {
		if c.Port == f.Port && c.Protocol == f.Protocol {
			return []string{fmt.Sprint(c.NewFlows), fmt.Sprint(c.RefusedPackets), fmt.Sprint(c.DroppedPackets), trafficText(c.FromClients), trafficText(c.ToClients)}
		}
	}
	return []string{"-", "-", "-", "-", "-"}
}

func connectionCells(s *api.Service, f api.Frontend) []string {
	for _, c := range s.Connections {
		if c.Port == f.Port && c.Protocol == f.Protocol {
			return []string{fmt.Sprint(c.Started), fmt.Sprint(c.Failed), fmt.Sprint(c.Open)}
		}
	}
	return []string{"-", "-", "-"}
}

// connectionsText is the statistics of connections on one line.
func connectionsText(c *api.Connections) string {
	text := fmt.Sprintf("%d new, %d open, %d failed", c.Started, c.Open, c.Failed)
	if c.Connecting > 0 {
		text += fmt.Sprintf(", %d connecting", c.Connecting)
	}
	if c.HandshakeP99Seconds > 0 {
		text += fmt.Sprintf("; handshake p50 %s, p99 %s", seconds(c.HandshakeP50Seconds), seconds(c.HandshakeP99Seconds))
	}
	if c.Closed+c.Failed > 0 {
		text += fmt.Sprintf("; ended: %s sent, %d received, %s retransmitted", plural.Of(c.SentBytes, "byte"), c.ReceivedBytes, plural.Of(c.Retransmits, "segment"))
	}
	return text
}

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Microsecond)
}

func trafficText(t conntrack.Traffic) string {
	return fmt.Sprintf("%d (%s)", t.Packets, plural.Of(t.Bytes, "byte"))
}
