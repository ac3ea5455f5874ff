// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
)

// The counts of a service are the sum over all tables and CPUs, whatever its id; they are removed with the
// id, and the next service with the id begins at zero.
func TestServiceCountersAddUp(t *testing.T) {
	w := newEdgeWorld(t)
	w.options.Limits.Services = 1 << 17
	w.do(func() error {
		d, err := Open(w.options)
		if err != nil {
			return err
		}
		defer d.Close()
		cpus := ebpf.MustPossibleCPU()
		counts, sent := make([]ServiceCounters, cpus), make([]EdgeTCServicePackets, cpus)
		for i := range cpus {
			counts[i] = ServiceCounters{Flows: 2, SentPackets: 3, SentBytes: 5}
			sent[i] = EdgeTCServicePackets{Packets: 7, Bytes: 11}
		}
		few := d.Map(EdgeTCMapServiceUntracked).MaxEntries()
		want := map[uint32]ServiceCounters{}
		for _, id := range []uint32{1, 1024, few - 1, few, 100000} {
			must(t, d.Tables.Services.Put(id, ServiceName{}))
			must(t, d.Map(EdgeTCMapServiceCounts).Put(id, counts))
			must(t, d.Map(EdgeTCMapServiceCollected).Put(id, EdgeTCServiceTraffic{SentPackets: 13, SentBytes: 17}))
			n := uint64(cpus)
			sum := ServiceCounters{Flows: 2 * n, SentPackets: 3*n + 13, SentBytes: 5*n + 17}
			if id < few {
				must(t, d.Map(EdgeTCMapServiceUntracked).Put(id, sent))
				sum.SentPackets += 7 * n
				sum.SentBytes += 11 * n
			}
			want[id] = sum
		}
		check := func(when string) {
			got, err := ReadServiceCounters(w.options.BPFFS)
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%s: %v\n%s", when, err, diff)
			}
		}
		check("all")
		for _, id := range []uint32{1, few - 1, few} {
			must(t, d.Tables.Services.Delete(id))
			delete(want, id)
		}
		check("some are deleted")
		must(t, d.Tables.Services.Put(1024, ServiceName{}))
		delete(want, 1024)
		check("another one has a reused id")
		return nil
	})
}
