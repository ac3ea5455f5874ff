// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/conntrack"
)

// A Service's packets only grow: those of a flow that ends are counted once, those of an evicted flow stay, and a
// port that gets the ID of another begins anew.
func TestTrafficOnlyGrows(t *testing.T) {
	web := service.Ref{Kind: service.KindService, Namespace: "default", Name: "web"}
	port := service.Port{Owner: web, Protocol: service.TCP}
	gone := map[uint32]bpf.ServiceCounters{}
	traffic := &traffic{
		counters: func() (map[uint32]bpf.ServiceCounters, error) {
			return map[uint32]bpf.ServiceCounters{7: gone[7]}, nil
		},
		names: func() (map[uint32]bpf.ServiceName, error) {
			name, err := codec.ServiceName(port)
			return map[uint32]bpf.ServiceName{7: name}, err
		},
		drops: func() (map[bpf.FrontendKey]uint64, error) { return nil, nil },
	}
	pass := func(when string, want uint64, live ...uint64) {
		t.Helper()
		traffic.Begin()
		for _, n := range live {
			e := &conntrack.Entry{Packets: n}
			e.Lb.Service = 7
			traffic.Entry(conntrack.Tuple{}, e)
		}
		if err := traffic.End(); err != nil {
			t.Fatal(err)
		}
		if got := traffic.totals[port.Owner].SentPackets; got != want {
			t.Errorf("%s, when conntrack entries have counted %v packets, and deleted ones %d: the Service's metric has %d packets, want %d", when, live, gone[7].SentPackets, got, want)
		}
	}
	pass("two flows", 15, 10, 5)
	pass("one of them continues", 25, 20, 5)
	pass("the other continues, and this GC pass deletes the first", 26, 20, 6)
	gone[7] = bpf.ServiceCounters{SentPackets: 20}
	pass("the first is deleted", 27, 7)
	pass("the second was evicted, which nothing counts", 27)
	pass("a new flow", 30, 3)
	port.Name = "other"
	gone[7] = bpf.ServiceCounters{}
	pass("another port of the Service has the ID", 32, 2)
}
