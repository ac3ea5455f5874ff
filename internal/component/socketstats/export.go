// SPDX-License-Identifier: Apache-2.0

package socketstats

import (
	"time"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/datapath/codec"
	"beeline.io/beeline/internal/inspect"
	"beeline.io/beeline/internal/service"
)

// A counter is a metric of a Service or backend.
type counter struct {
	name string
	kind inspect.MetricKind
	help string
	of   func(*datapath.ConnectionStats) uint64
}

// counters are the metrics of each Service, and with the second prefix of each backend.
var counters = []counter{
	{"connections_total", inspect.CounterMetric, "TCP connections that programs on this node started to a Service: SYNs without retransmissions.",
		func(s *datapath.ConnectionStats) uint64 { return s.Started }},
	{"connections_failed_total", inspect.CounterMetric, "TCP connections that were reset, timed out or were given up before they were established.",
		func(s *datapath.ConnectionStats) uint64 { return s.Failed }},
	{"connections_closed_total", inspect.CounterMetric, "Established TCP connections that have ended.",
		func(s *datapath.ConnectionStats) uint64 { return s.Closed }},
	{"connections_open", inspect.GaugeMetric, "TCP connections that are established.",
		(*datapath.ConnectionStats).Open},
	{"sent_bytes_total", inspect.CounterMetric, "Payload sent to the Service, without retransmissions, by TCP connections that have ended.",
		func(s *datapath.ConnectionStats) uint64 { return s.SentBytes }},
	{"received_bytes_total", inspect.CounterMetric, "Payload received from the Service by TCP connections that have ended.",
		func(s *datapath.ConnectionStats) uint64 { return s.ReceivedBytes }},
	{"retransmits_total", inspect.CounterMetric, "TCP segments retransmitted, SYNs included, by connections that have ended.",
		func(s *datapath.ConnectionStats) uint64 { return s.Retransmits }},
}

const (
	servicePrefix = "beeline_socket_"
	backendPrefix = "beeline_socket_backend_"
	handshake     = "handshake_seconds"
	handshakeHelp = "Time from the SYN to the SYN-ACK of established TCP connections."
)

// export returns the metrics of all Services and backends with connections. Service IDs with the same name are one
// Service: the earlier one has been replaced, and is freed soon.
func export(stats *datapath.AllConnectionStats, names map[uint32]datapath.ServiceName) []inspect.Metric {
	ports, backends := map[service.Port]*datapath.ConnectionStats{}, map[portBackend]*datapath.ConnectionStats{}
	for id, s := range stats.Services {
		if name, named := names[id]; named {
			add(ports, codec.PortOf(name), &s)
		}
	}
	for key, s := range stats.Backends {
		if name, named := names[key.Service]; named {
			add(backends, portBackend{codec.PortOf(name), key.Address.String()}, &s)
		}
	}
	all := make([]inspect.Metric, 0, 1+(len(ports)+len(backends))*(len(counters)+1))
	all = append(all, inspect.Metric{
		Name: servicePrefix + "connections_uncounted_total", Kind: inspect.CounterMetric,
		Help: "TCP connections to Services that are in no other metric, because there was no room.", Value: float64(stats.Uncounted),
	})
	for port, s := range ports {
		all = appendMetrics(all, servicePrefix, inspect.PortLabels(port), s)
	}
	for key, s := range backends {
		labels := inspect.PortLabels(key.port)
		labels["backend"] = key.backend
		all = appendMetrics(all, backendPrefix, labels, s)
	}
	return all
}

// portBackend is a backend, address and port, of a service port.
type portBackend struct {
	port    service.Port
	backend string
}

func add[K comparable](all map[K]*datapath.ConnectionStats, key K, s *datapath.ConnectionStats) {
	if all[key] == nil {
		all[key] = &datapath.ConnectionStats{}
	}
	all[key].Add(s)
}

// appendMetrics adds the metrics of a Service or backend, which share the labels.
func appendMetrics(all []inspect.Metric, prefix string, labels map[string]string, s *datapath.ConnectionStats) []inspect.Metric {
	for _, c := range counters {
		all = append(all, inspect.Metric{Name: prefix + c.name, Kind: c.kind, Help: c.help, Labels: labels, Value: float64(c.of(s))})
	}
	return append(all, inspect.Metric{Name: prefix + handshake, Kind: inspect.HistogramMetric, Help: handshakeHelp, Labels: labels, Histogram: histogram(s)})
}

// histogram has a bucket for each octave, of the four that are counted: one for each would be 66 time series for
// each Service. The last octave has no bound, because its last bucket has none.
func histogram(s *datapath.ConnectionStats) *inspect.Histogram {
	h := &inspect.Histogram{Sum: (time.Duration(s.RttSum) * time.Microsecond).Seconds()}
	for i, n := range s.Rtt {
		h.Count += n
		if last := i%datapath.RTTParts == datapath.RTTParts-1; last && i < datapath.RTTBuckets-1 {
			h.Buckets = append(h.Buckets, inspect.Bucket{UpTo: datapath.RTTBound(i).Seconds(), Count: h.Count})
		}
	}
	return h
}
