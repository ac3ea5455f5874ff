// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"encoding/json"
	"strings"
	"testing"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
)

// counters returns the counters of a port of a Service.
func (w *world) counters(service, port string, args ...string) api.PortCounters {
	w.t.Helper()
	text, err := w.agent.CLI(append([]string{"service", "list", "-o", "json"}, args...)...)
	w.must(err)
	var list struct{ Items []api.Service }
	w.must(json.Unmarshal([]byte(text), &list))
	for _, s := range list.Items {
		for _, c := range s.EdgeCounters {
			if s.Name == service && c.Port == port {
				return c
			}
		}
	}
	w.t.Fatalf("%s has no counters for port %s: %s", service, port, text)
	return api.PortCounters{}
}

// Traffic is counted by Service: new flows, refusals and drops at once, packets and bytes by the flows. The
// counts survive the removal of flows and a new agent. A Service that is created again starts from zero.
func TestServiceCounters(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := startWorld(t, "--edge-mode="+mode)
		w.services()
		want := api.PortCounters{}
		for family := range 2 {
			conn := w.open("udp", w.address("NodePort", 1, family))
			w.served(conn)
			w.served(conn)
			w.served(w.open("udp", w.address("ClusterIP", 1, family)))
			want.NewFlows += 2
			want.FromClients.Packets += 3
			want.ToClients.Packets += 3
			header := uint64(20 + 8)
			if family == 1 {
				header = 40 + 8
			}
			want.FromClients.Bytes += 3 * (header + uint64(len("hello")))
			w.datagram(w.address("NodePort", 2, family))
			w.datagram(w.address("NodePort", 3, family))
		}
		check := func(when string, args ...string) {
			t.Helper()
			c := w.counters("web", "udp", args...)
			want.ID, want.Port, want.Protocol, want.ToClients.Bytes = c.ID, c.Port, c.Protocol, c.ToClients.Bytes
			if c != want || c.ToClients.Bytes < want.FromClients.Bytes {
				t.Errorf("%s: %+v, want %+v", when, c, want)
			}
		}
		check("with flows")
		w.eventually("the refusals are counted", func() bool { return w.counters("none", "udp").RefusedPackets == 2 })
		w.eventually("the drops are counted", func() bool { return w.counters("there", "udp").DroppedPackets == 2 })
		_, err := w.agent.CLI("flow", "flush", "--all")
		w.must(err)
		check("without flows")
		w.must(w.agent.Stop())
		check("without an agent", "--pins")
		w.must(w.agent.Start())
		check("with another agent")
		if text, err := w.agent.CLI("service", "list", "-o", "wide"); err != nil || !strings.Contains(text, "6 (") {
			t.Errorf("the wide list (%v) is\n%s", err, text)
		}
		w.must(w.folder.Remove("web"))
		w.eventually("the Service is removed", func() bool { return !w.named("web") })
		w.apply("web", objects(w.everywhere("web", 1, "a1", "b1"))...)
		if c := w.counters("web", "udp"); c.NewFlows != 0 || c.FromClients.Packets != 0 {
			t.Errorf("a Service created again begins with %+v", c)
		}
	})
}

// named reports whether a Service has an ID in the tables.
func (w *world) named(service string) bool {
	w.t.Helper()
	tables, err := bpf.OpenTables(w.agent.BPFFS())
	w.must(err)
	names, err := tables.Services.All()
	w.must(err)
	for _, name := range names {
		if strings.HasPrefix(string(name.Name[:]), service+"\x00") {
			return true
		}
	}
	return false
}
