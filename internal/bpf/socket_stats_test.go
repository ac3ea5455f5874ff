// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"beeline.io/beeline/test/lab"
)

// TestBackendStatisticsAreDeleted: only of backends that are gone and have no connections, or whose Service is gone.
func TestBackendStatisticsAreDeleted(t *testing.T) {
	o := options(t)
	o.Components = []*Component{Socket(), SocketStats(func() *SocketStatsOptions { return &SocketStatsOptions{PerBackend: true} })}
	d := mustOpen(t, o)
	const birth = 7
	must(t, d.Map(SockStatsMapServiceSockets).Put(uint32(1), ConnectionStats{Birth: birth}))
	backend := func(n byte) netip.AddrPort { return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 80) }
	add := func(service uint32, birth uint64, n byte, s ConnectionStats) {
		key := SockStatsBackendSocketsKey{ServiceBirth: birth, Service: service, Port: NetworkOrder(80)}
		key.Address.Bytes = backend(n).Addr().As16()
		must(t, d.Map(SockStatsMapBackendSockets).Put(key, s))
	}
	ended, open, connecting := ConnectionStats{Started: 3, Established: 2, Closed: 2, Failed: 1}, ConnectionStats{Started: 2, Established: 2, Closed: 1}, ConnectionStats{Started: 1}
	add(1, birth, 1, ended) // exists
	add(1, birth, 2, ended)
	add(1, birth, 3, open)
	add(1, birth, 4, connecting)
	add(1, birth-1, 1, open) // of an earlier Service with the ID
	add(2, birth, 1, open)   // of no Service
	must(t, DeleteSocketBackends(d, func(b netip.AddrPort) bool { return b == backend(1) }))
	left, err := socketBackends(d.Map(SockStatsMapBackendSockets)).All()
	must(t, err)
	stats, err := ReadSocketStats(o.BPFFS)
	must(t, err)
	want := map[SocketBackend]ConnectionStats{{1, backend(1)}: ended, {1, backend(3)}: open, {1, backend(4)}: connecting}
	if !maps.Equal(stats.Backends, want) || len(left) != len(want) {
		t.Errorf("left are %v, want %v", slices.Collect(maps.Keys(left)), slices.Collect(maps.Keys(want)))
	}
}

// BenchmarkReadSocketStats reads the statistics of 10,000 Services.
func BenchmarkReadSocketStats(b *testing.B) {
	node := lab.New(b).Nodes()[0]
	o := Options{BPFFS: filepath.Join(node.BPFFS, "beeline"), CgroupRoot: node.CgroupRoot,
		Components: []*Component{Socket(), SocketStats(func() *SocketStatsOptions { return &SocketStatsOptions{} })}}
	d, err := Open(o)
	must(b, err)
	defer d.Close()
	for id := range uint32(10000) {
		must(b, d.Map(SockStatsMapServiceSockets).Put(id+1, ConnectionStats{Birth: 1, Started: 2}))
	}
	for b.Loop() {
		stats, err := ReadSocketStats(o.BPFFS)
		if err != nil || len(stats.Services) != 10000 {
			b.Fatal(err, len(stats.Services))
		}
	}
}
