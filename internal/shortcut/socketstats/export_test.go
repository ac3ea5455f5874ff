// SPDX-License-Identifier: Apache-2.0

package socketstats

import (
	"fmt"
	"net/netip"
	"testing"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
)

func name(service string) (n bpf.ServiceName) {
	copy(n.Namespace[:], "default")
	copy(n.Name[:], service)
	copy(n.Port[:], "http")
	n.Protocol = 6
	return n
}

// TestExport: two IDs with the same name are one time series, since Prometheus refuses a series twice; an ID without
// a name is none; the buckets of an octave are one.
func TestExport(t *testing.T) {
	s := bpf.ConnectionStats{Started: 5, Established: 4, Failed: 1, Closed: 1, RttSum: 2500000}
	s.Rtt[0], s.Rtt[3], s.Rtt[4], s.Rtt[bpf.RTTBuckets-1] = 1, 1, 1, 1
	backend := bpf.SocketBackend{Service: 1, Address: netip.MustParseAddrPort("[fd00::1]:80")}
	stats := &bpf.AllConnectionStats{
		Services: map[uint32]bpf.ConnectionStats{1: s, 2: s, 3: s}, Backends: map[bpf.SocketBackend]bpf.ConnectionStats{backend: s}, Uncounted: 6,
	}
	all := map[string]api.Metric{}
	for _, m := range export(stats, map[uint32]bpf.ServiceName{1: name("web"), 2: name("web")}) {
		series := m.Name + fmt.Sprint(m.Labels)
		if _, twice := all[series]; twice {
			t.Errorf("%s is exported twice", series)
		}
		all[series] = m
	}
	const labels = "namespace:default service:web]"
	for series, want := range map[string]float64{
		"beeline_socket_connections_uncounted_totalmap[]":                            6,
		"beeline_socket_connections_totalmap[" + labels:                              10,
		"beeline_socket_connections_openmap[" + labels:                               6,
		"beeline_socket_backend_connections_totalmap[backend:[fd00::1]:80 " + labels: 5,
	} {
		if m, exported := all[series]; m.Value != want || !exported {
			t.Errorf("%s is %v, want %v", series, m.Value, want)
		}
	}
	if len(all) != 1+2*8 {
		t.Errorf("%d time series", len(all))
	}
	h := all["beeline_socket_handshake_secondsmap["+labels].Histogram
	if h == nil || len(h.Buckets) != 15 || h.Buckets[0] != (api.Bucket{UpTo: 32e-6, Count: 4}) || h.Buckets[1].Count != 6 || h.Buckets[14].Count != 6 || h.Count != 8 || h.Sum != 5 {
		t.Errorf("histogram %+v", h)
	}
}

// BenchmarkExport exports the statistics of 10,000 Services.
func BenchmarkExport(b *testing.B) {
	stats, names := &bpf.AllConnectionStats{Services: map[uint32]bpf.ConnectionStats{}}, map[uint32]bpf.ServiceName{}
	for id := range uint32(10000) {
		stats.Services[id], names[id] = bpf.ConnectionStats{Started: 1}, name(fmt.Sprint("service-", id))
	}
	for b.Loop() {
		export(stats, names)
	}
}
