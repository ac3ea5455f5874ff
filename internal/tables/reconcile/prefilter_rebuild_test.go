// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"io"
	"log/slog"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/conntrack/conntracktest"
)

// A GC pass makes the prefilter pass the packets of all flows and frontends, after the programs have ended
// that were running: but not while programs of an earlier agent may be attached.
func TestPrefilterRebuildInGC(t *testing.T) {
	k := smallKernel(t)
	s, err := New(k.tables)
	if err != nil {
		t.Fatal(err)
	}
	r := newRand(t)
	for number := 0; s.frontends.count() == 0; number++ {
		owner := ref("s")
		s.Apply(service.Delta{Plans: map[service.Ref]*service.Plan{owner: randomPlan(r, owner, number)}}) // some plans have no frontend
	}
	now := bpf.Now()
	const tcp = unix.IPPROTO_TCP
	both := [2]int{conntracktest.Both, conntracktest.Both}
	table, unreplied := conntracktest.Table{}, conntracktest.Table{}
	table.Put(tcp, "198.51.100.7:40000", "10.10.2.11:8080", both, [2]uint32{now, now})
	unreplied.Put(tcp, "198.51.100.8:40000", "10.10.2.12:8080", both, [2]uint32{now, now})
	waited := 0
	collector := conntrack.NewCollector(&conntrack.Tables{Assured: table, Unreplied: unreplied}, func() error { waited++; return nil },
		conntrack.Config{Timeouts: conntrack.DefaultTimeouts, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}, s.PrefilterWalk())
	prefilter := k.tables.Prefilter
	collector.Collect()
	if prefilter.Enabled() {
		t.Fatal("the prefilter is enabled while programs of an earlier agent may be attached")
	}
	prefilter.SetProgramsCurrent(true)
	waited = 0
	collector.Collect()
	if !prefilter.Enabled() || waited == 0 {
		t.Fatalf("the prefilter is enabled: %v; waited %d times for programs that were running", prefilter.Enabled(), waited)
	}
	for _, flows := range []conntracktest.Table{table, unreplied} {
		for key := range flows {
			if !prefilter.Contains(bpf.FrontendKey{Address: bpf.Address(key.Destination), Port: key.DestinationPort, Protocol: key.Protocol}) {
				t.Errorf("the prefilter does not pass the packets of the entry %v", key)
			}
		}
	}
	for key := range k.index.entries {
		if !prefilter.Contains(key) {
			t.Errorf("the prefilter does not pass the packets to the frontend %v", key)
		}
	}
	stranger := conntracktest.Tuple(tcp, "198.51.100.7:40000", "203.0.113.9:81")
	if prefilter.Contains(bpf.FrontendKey{Address: bpf.Address(stranger.Destination), Port: stranger.DestinationPort, Protocol: tcp}) {
		t.Error("the prefilter passes packets of no flow and no frontend")
	}
}
