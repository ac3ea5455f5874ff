// SPDX-License-Identifier: Apache-2.0

package socketstats

import (
	"net/netip"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/report/metrics"
)

// export returns the metrics of all Services and backends with connections. The ports of a Service are one series.
func export(stats *bpf.AllConnectionStats, names map[uint32]bpf.ServiceName) []api.Metric {
	services, backends := map[service.Ref]*bpf.ConnectionStats{}, map[backendRef]*bpf.ConnectionStats{}
	for id, s := range stats.Services {
		if name, named := names[id]; named {
			add(services, codec.PortOf(name).Owner, &s)
		}
	}
	for key, s := range stats.Backends {
		if name, named := names[key.Service]; named {
			add(backends, backendRef{codec.PortOf(name).Owner, key.Address}, &s)
		}
	}
	b := metrics.NewBatch()
	b.Add("beeline_socket_connections_uncounted_total", float64(stats.Uncounted))
	for ref, s := range services {
		addConnections(b, "beeline_socket_", metrics.Labels("namespace", ref.Namespace, "service", ref.Name), s)
	}
	for key, s := range backends {
		labels := metrics.Labels("namespace", key.service.Namespace, "service", key.service.Name, "backend", key.backend.String())
		addConnections(b, "beeline_socket_backend_", labels, s)
	}
	return b.Metrics
}

// backendRef is a backend of a Service.
type backendRef struct {
	service service.Ref
	backend netip.AddrPort
}

func add[K comparable](all map[K]*bpf.ConnectionStats, key K, s *bpf.ConnectionStats) {
	if all[key] == nil {
		all[key] = &bpf.ConnectionStats{}
	}
	all[key].Add(s)
}

// addConnections adds the metrics of a Service or backend, which share the labels.
func addConnections(b *metrics.Batch, prefix string, labels map[string]string, s *bpf.ConnectionStats) {
	for name, n := range map[string]uint64{
		"connections_total": s.Started, "connections_failed_total": s.Failed, "connections_closed_total": s.Closed,
		"connections_open": s.Open(), "sent_bytes_total": s.SentBytes, "received_bytes_total": s.ReceivedBytes, "retransmits_total": s.Retransmits,
	} {
		b.AddLabels(prefix+name, float64(n), labels)
	}
	b.AddHistogram(prefix+"handshake_seconds", histogram(s), labels)
}

// histogram has a bucket for each octave, of the four that are counted: one for each would be 66 time series for
// each Service. The last octave has no bound, because its last bucket has none.
func histogram(s *bpf.ConnectionStats) *api.Histogram {
	h := &api.Histogram{Sum: (time.Duration(s.RttSum) * time.Microsecond).Seconds()}
	for i, n := range s.Rtt {
		h.Count += n
		if last := i%bpf.RTTParts == bpf.RTTParts-1; last && i < bpf.RTTBuckets-1 {
			h.Buckets = append(h.Buckets, api.Bucket{UpTo: bpf.RTTBound(i).Seconds(), Count: h.Count})
		}
	}
	return h
}
