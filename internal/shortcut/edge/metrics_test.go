// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"testing"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/report/metrics"
	"beeline.io/beeline/internal/report/metrics/metricstest"
)

// Each counter of a Service moves its metric and no other, also when it grows between two passes.
func TestTrafficAndMetrics(t *testing.T) {
	web := service.Ref{Kind: service.KindService, Namespace: "default", Name: "web"}
	var counts bpf.ServiceCounters
	series := func(name, direction string) string {
		if direction != "" {
			direction = "direction=" + direction + ","
		}
		return name + "{" + direction + "namespace=default,service=web}"
	}
	want := map[string]string{
		"Flows":           series("beeline_service_flows_total", ""),
		"Refused":         series("beeline_service_refused_total", ""),
		"Dropped":         series("beeline_service_dropped_total", ""),
		"SentPackets":     series("beeline_service_packets_total", "sent"),
		"SentBytes":       series("beeline_service_bytes_total", "sent"),
		"ReceivedPackets": series("beeline_service_packets_total", "received"),
		"ReceivedBytes":   series("beeline_service_bytes_total", "received"),
	}
	metricstest.EachMovesOne(t, &counts, func(b *metrics.Batch) {
		var total bpf.ServiceCounters
		grow(&total, counts, bpf.ServiceCounters{})
		traffic := &traffic{totals: map[service.Ref]bpf.ServiceCounters{web: total}}
		if err := traffic.metrics(b); err != nil {
			t.Error(err)
		}
	}, want)
}

// An entry's packets are those of its direction: the client's are sent, the backend's received.
func TestEntriesAndMetrics(t *testing.T) {
	for _, c := range []struct {
		name string
		of   conntrack.Entry
		want bpf.ServiceCounters
	}{
		{"the client's", conntrack.Entry{Packets: 3, Bytes: 5}, bpf.ServiceCounters{SentPackets: 3, SentBytes: 5}},
		{"the backend's", conntrack.Entry{Packets: 3, Bytes: 5, Flags: uint8(bpf.ConntrackReply)}, bpf.ServiceCounters{ReceivedPackets: 3, ReceivedBytes: 5}},
	} {
		var got bpf.ServiceCounters
		if got.AddEntry(&c.of); got != c.want {
			t.Errorf("%s conntrack entry has 3 packets of 5 bytes; it counts as sent: %d of %d, received: %d of %d; want sent: %d of %d, received: %d of %d", c.name,
				got.SentPackets, got.SentBytes, got.ReceivedPackets, got.ReceivedBytes, c.want.SentPackets, c.want.SentBytes, c.want.ReceivedPackets, c.want.ReceivedBytes)
		}
	}
}

// Each result of a GC pass moves its metric and no other.
func TestPassesAndMetrics(t *testing.T) {
	passes := conntrack.Passes{}
	read := func(b *metrics.Batch) {
		p := passes
		if p.Last.IsZero() {
			p.Last = time.Unix(0, 0)
		}
		addPasses(b, p)
	}
	metricstest.EachMovesOne(t, &passes, read, map[string]string{
		"Last":             "beeline_conntrack_gc_timestamp_seconds",
		"Took":             "beeline_conntrack_gc_duration_seconds",
		"Expired":          "beeline_conntrack_expired_flows_total",
		"Census.Spare":     "",
		"Census.SNATPorts": "beeline_snat_ports_used_max",
		"Assured":          "beeline_conntrack_limit{table=conntrack}",
		"Unreplied":        "beeline_conntrack_limit{table=unreplied}",
	})
	for class, want := range map[conntrack.EntryClass]string{
		{Assured: true, Protocol: service.TCP, State: bpf.ConntrackEstablished}: "beeline_conntrack_entries{protocol=TCP,state=established,table=conntrack}",
		{Protocol: service.UDP, State: bpf.ConntrackNew}:                        "beeline_conntrack_entries{protocol=UDP,state=new,table=unreplied}",
		{Assured: true, Protocol: service.SCTP, State: bpf.ConntrackClosed}:     "beeline_conntrack_entries{protocol=SCTP,state=closed,table=conntrack}",
	} {
		passes.Census.Entries = map[conntrack.EntryClass]int{class: 4}
		b := metrics.NewBatch()
		read(b)
		for _, m := range b.Metrics {
			if name := metricstest.Name(m); m.Name == "beeline_conntrack_entries" && (m.Value == 4) != (name == want) {
				t.Errorf("of 4 conntrack entries (assured: %t, %s, %s) the metric %s is %v, want 4 for %s alone", class.Assured, class.Protocol, conntrack.StateNames[class.State], name, m.Value, want)
			}
		}
	}
}
