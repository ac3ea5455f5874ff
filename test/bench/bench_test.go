// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/test/bench/endpoint"
	"beeline.io/beeline/test/bench/kubernetes"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

func TestMain(m *testing.M) {
	lab.Main()
	endpoint.Main()
	os.Exit(m.Run())
}

// beeline is the program to test.
func beeline(t *testing.T) string {
	t.Helper()
	program, err := node.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// Every scenario carries traffic, the way that it says: run itself fails where
// the hooks did not count each connection.
func TestSmoke(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the lab needs root")
	}
	var out bytes.Buffer
	s := settings{
		program: beeline(t), runs: 1, slice: 20 * time.Millisecond, cpus: cpusAuto, smoke: true,
		output: filepath.Join(t.TempDir(), "results.json"), controlPlane: "../../build/controlplane",
	}
	if err := run(t.Context(), s, &out); err != nil {
		t.Fatalf("%v; it printed:\n%s", err, &out)
	}
	text, err := os.ReadFile(s.output)
	if err != nil {
		t.Fatal(err)
	}
	var r results
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatalf("%v in the results:\n%s", err, text)
	}
	// Two numbers of Services, two families, and the cases of three hooks.
	if len(r.Hook) != 2*2*(4+7+3) || len(r.Control) != 1 {
		t.Errorf("%d hook and %d control results", len(r.Hook), len(r.Control))
	}
	sides := 1
	if kubernetes.Find(s.controlPlane) == nil {
		sides = 3
	}
	if len(r.Changes) != sides {
		t.Errorf("%d sides in the results of changes, want %d", len(r.Changes), sides)
	}
	for _, side := range r.Changes {
		if len(side.Change) != 2 || side.Start <= 0 || side.Resident <= 0 {
			t.Errorf("%+v", side)
		}
	}
	// Of each family, with few flows and with many; with DSR of IPv4 both, of IPv6 few.
	if want := 2*(24+9) + 24 + 4 + 8; len(r.Edge) != want {
		t.Errorf("%d edge results, want %d", len(r.Edge), want)
	}
	for _, edge := range r.Edge {
		if len(edge.Net) != s.runs || len(edge.Minimal) != s.runs {
			t.Errorf("%+v", edge)
		}
	}
	if len(r.Balancer) != 8 {
		t.Errorf("%d ways in the results of balancers", len(r.Balancer))
	}
	for _, way := range r.Balancer {
		if len(way.Samples) != s.runs || way.Samples[0].PerSecond <= 0 || way.Samples[0].P50 <= 0 || way.Samples[0].CPU <= 0 {
			t.Errorf("%+v", way)
		}
	}
	var measured []scenario
	for _, sockets := range r.Sockets {
		measured = append(measured, sockets.Scenario)
		for i, samples := range sockets.Samples {
			if len(samples) != s.runs || samples[0].Operations == 0 || samples[0].P50 <= 0 || samples[0].CPU <= 0 {
				t.Errorf("%s, %s: %+v", sockets.Scenario, sideNames[i], samples)
			}
		}
	}
	if !slices.Equal(measured, scenarios()) {
		t.Errorf("the results have the scenarios %v", measured)
	}
	for _, hook := range r.Hook {
		if len(hook.Samples) != s.runs || hook.Samples[0] <= 0 {
			t.Errorf("%+v", hook)
		}
	}
}

// What the hooks counted is what they should have, or the run fails.
func TestProve(t *testing.T) {
	before := datapath.SocketCounters{ConnectPass: 5, ConnectBalance: 7, ConnectReject: 1, DatagramPass: 3}
	const tcp, sendto, send = endpoint.RequestResponse, endpoint.UDPUnconnected, endpoint.UDPConnected
	connections := endpoint.Result{Connected: 10}
	datagrams := endpoint.Result{Sent: 20, Received: 20}
	lossy := endpoint.Result{Sent: 20, Received: 18, Resent: 2}
	connected := endpoint.Result{Connected: 4, Sent: 20, Received: 20}
	type counters = datapath.SocketCounters
	for _, c := range []struct {
		what   string
		counts counters
		path   path
		mode   endpoint.Mode
		result endpoint.Result
		wrong  string // empty if it is proved
	}{
		{"every connection balanced", counters{ConnectBalance: 10}, balanced, tcp, connections, ""},
		{"every connection passed", counters{ConnectPass: 10}, passed, tcp, connections, ""},
		{"nothing seen", counters{}, unhooked, tcp, connections, ""},
		{"the hook did not run", counters{}, balanced, tcp, connections, "ConnectBalance 0 times instead of 10"},
		{"one connection missed", counters{ConnectBalance: 9}, balanced, tcp, connections, "ConnectBalance 9 times"},
		{"the direct side was balanced", counters{ConnectBalance: 10}, passed, tcp, connections, "ConnectBalance 10 times"},
		{"the bare side was hooked", counters{ConnectPass: 10}, unhooked, tcp, connections, "ConnectPass 10 times"},
		{"somebody else connected, too", counters{ConnectPass: 1, ConnectBalance: 10}, balanced, tcp, connections, "ConnectPass 1 times"},
		{"one was refused", counters{ConnectBalance: 10, ConnectReject: 1}, balanced, tcp, connections, "ConnectReject 1 times"},

		{"every datagram and its answer passed", counters{DatagramPass: 40}, passed, sendto, datagrams, ""},
		{"every datagram balanced", counters{DatagramBalance: 20, DatagramName: 20, FlowNew: 4, DatagramPass: 20}, balanced, sendto, datagrams, ""},
		{"datagrams of another were balanced", counters{DatagramBalance: 1}, unhooked, sendto, datagrams, "DatagramBalance 1 times"},
		{"an answer without its name", counters{DatagramBalance: 20, DatagramName: 19, FlowNew: 4, DatagramPass: 20}, balanced, sendto, datagrams, "DatagramName 19"},
		{"a flow was forgotten", counters{DatagramBalance: 20, DatagramName: 20, FlowNew: 5, FlowStale: 1, DatagramPass: 20}, balanced, sendto, datagrams, "FlowStale 1"},
		{"a server's answer is missing", counters{DatagramPass: 39}, passed, sendto, datagrams, "DatagramPass 39 times instead of 40"},
		{"two lost on the way there", counters{DatagramPass: 38}, passed, sendto, lossy, ""},
		{"two lost on the way back", counters{DatagramPass: 40}, passed, sendto, lossy, ""},
		{"more lost than sent again", counters{DatagramPass: 37}, passed, sendto, lossy, "DatagramPass 37"},
		{"connected sockets balanced", counters{ConnectBalance: 4, DatagramPass: 20}, balanced, send, connected, ""},
		{"connected sockets passed", counters{ConnectPass: 4, DatagramPass: 20}, passed, send, connected, ""},
		{"a connected socket's datagrams were looked up", counters{ConnectBalance: 4, DatagramPass: 40}, balanced, send, connected, "DatagramPass 40"},
	} {
		after := combine(before, c.counts, func(a, b uint64) uint64 { return a + b })
		err := prove(before, after, countersOf(c.path, c.mode, 4, c.result), c.result.Resent)
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: %v, want an error with %q", c.what, err, c.wrong)
		}
	}
}
