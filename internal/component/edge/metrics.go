// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"maps"
	"sync"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/datapath/codec"
	"beeline.io/beeline/internal/inspect"
	"beeline.io/beeline/internal/service"
)

// metrics returns the packet counts by reason, and the traffic of each Service.
func (r *running) metrics() (all []inspect.Metric, err error) {
	counters, err := datapath.ReadEdgeCounters(r.env.BPFFS)
	if err != nil {
		return nil, err
	}
	for reason, n := range counters {
		all = append(all, inspect.Metric{
			Name: "beeline_edge_packets_total", Kind: inspect.CounterMetric, Help: "Packets at devices, by what the edge did with them.",
			Labels: map[string]string{"reason": reason}, Value: float64(n),
		})
	}
	services, err := inspect.EdgeCounters(r.env.BPFFS)
	if err != nil {
		return all, err
	}
	names, err := r.env.Datapath.Tables.Services.All()
	if err != nil {
		return all, err
	}
	for port, c := range r.exported.update(services, names) {
		all = append(all, serviceMetrics(port, &c)...)
	}
	return all, nil
}

// exported are the counters of each service port as last exported. The counts of flows that are evicted from the
// conntrack table are lost, so that a sum may decrease: it would look like a restart from zero.
type exported struct {
	mu    sync.Mutex
	ports map[service.Port]datapath.ServiceCounters
}

// update returns the greater of the new and the last counters of each port in the tables.
func (e *exported) update(counters map[uint32]datapath.ServiceCounters, names map[uint32]datapath.ServiceName) map[service.Port]datapath.ServiceCounters {
	sums := map[service.Port]datapath.ServiceCounters{}
	for id, c := range counters {
		if name, named := names[id]; named {
			port := codec.PortOf(name)
			sum := sums[port]
			sum.Add(c)
			sums[port] = sum
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for port, sum := range sums {
		last := e.ports[port]
		if sum.Flows >= last.Flows { // otherwise the Service was deleted and created again
			sum.SentPackets, sum.SentBytes = max(sum.SentPackets, last.SentPackets), max(sum.SentBytes, last.SentBytes)
			sum.ReceivedPackets, sum.ReceivedBytes = max(sum.ReceivedPackets, last.ReceivedPackets), max(sum.ReceivedBytes, last.ReceivedBytes)
			sums[port] = sum
		}
	}
	e.ports = sums
	return maps.Clone(sums)
}

func serviceMetrics(port service.Port, c *datapath.ServiceCounters) (all []inspect.Metric) {
	labels := inspect.PortLabels(port)
	add := func(name, help, direction string, n uint64) {
		of := labels
		if direction != "" {
			of = maps.Clone(labels)
			of["direction"] = direction
		}
		all = append(all, inspect.Metric{Name: "beeline_edge_service_" + name, Kind: inspect.CounterMetric, Help: help, Labels: of, Value: float64(n)})
	}
	const packets, bytes = "Packets between clients and a Service that passed the edge.", "Bytes of packets between clients and a Service that passed the edge."
	add("flows_total", "Flows of clients to a Service that began at the edge.", "", c.Flows)
	add("refused_total", "Packets to a Service that the edge rejected.", "", c.Refused)
	add("dropped_total", "Packets to a Service that the edge dropped.", "", c.Dropped)
	add("packets_total", packets, "sent", c.SentPackets)
	add("packets_total", packets, "received", c.ReceivedPackets)
	add("bytes_total", bytes, "sent", c.SentBytes)
	add("bytes_total", bytes, "received", c.ReceivedBytes)
	return all
}
