// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/bench/forward"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/controlplane"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/needs"
	"beeline.io/beeline/test/node"
)

func TestMain(m *testing.M) {
	lab.Main()
	endpoint.Main()
	os.Exit(m.Run())
}

// Every scenario carries traffic on its path: run itself fails if the hooks did not count each connection.
func TestSmoke(t *testing.T) {
	needs.Root(t)
	var out bytes.Buffer
	asked := netip.MustParseAddrPort("192.0.2.80:80")
	peer := idOf(t, loadPeer(t, LoadCostXDP, 0, asked))
	s := commandLine{
		Settings: harness.Settings{Program: node.Program(t), Runs: 1, Slice: 20 * time.Millisecond, CPUs: harness.CPUsAuto, Smoke: true,
			ControlPlane: "../build/controlplane", Envoy: envoyProgram(t)},
		output: filepath.Join(t.TempDir(), "results.json"),
		peer:   []string{fmt.Sprintf("peer=%d,packet=%s", peer, writePacket(t, string(peerPacket(asked, 0))))},
	}
	rateSides, changesSides, socketRows := 15, 1, 0
	for _, c := range scenarios(true) {
		socketRows += sides
		if c.Backend == "local" {
			socketRows-- // no packet passes the nodes' devices
		}
		if c.Mode.Datagrams() || controlplane.Find(s.ControlPlane) != nil {
			socketRows -= 2
		}
	}
	if forward.HasIPVS() {
		rateSides += forward.IPVSSides
	}
	if err := controlplane.Find(s.ControlPlane); err == nil {
		rateSides, changesSides = rateSides+2, changesSides+2
	} else {
		t.Run("kube-proxy", func(t *testing.T) { t.Skip(err) })
	}
	if err := run(t.Context(), s, &out); err != nil {
		t.Logf("it printed:\n%s", &out)
		t.Fatal(err)
	}
	r, err := result.Read(s.output)
	if err != nil {
		t.Fatal(err)
	}
	for part, want := range map[string]struct {
		metric result.Metric
		rows   int
	}{
		partSockets: {harness.MetricP50, socketRows},
		// Two numbers of Services, two families, and the cases of three hooks.
		partHook:       {metricCall, 2 * 2 * (4 + 7 + 3)},
		partStatistics: {harness.MetricP50, 2 * statisticsSides},
		partPods:       {harness.MetricP50, len(podsCases()) * podsSides},
		// Half of the cases have another side.
		partOffload: {harness.MetricPacketCPU, len(offloadPacketCases())*offloadSides + len(offloadPacketCases())/2},
		// One proxy has all kinds of traffic.
		partMesh: {harness.MetricPerSecond, (len(meshProxies(s.Envoy)) + len(meshTraffics) - 1) * meshSides},
		// Beeline and the yardstick: for each family, with few flows and with many; with DSR for IPv4
		// both, for IPv6 few. And for a peer, and for the yardstick with records.
		partEdge:     {metricPacket, 2 * (2*(24+9) + 26 + 4 + 8 + 2 + 3)},
		partRates:    {harness.MetricPacketCPU, rateSides},
		partBalancer: {harness.MetricPerSecond, 8},
		partControl:  {harness.MetricTime, 5},
		partChanges:  {harness.MetricTime, 2 * changesSides},
	} {
		if got := r.Of(part, want.metric); len(got) != want.rows {
			t.Errorf("part %s has %d rows of %s, want %d", part, len(got), want.metric.Name, want.rows)
		}
	}
	for _, row := range r.Rows {
		if row.Part != partControl && row.Part != partChanges && len(row.Samples) != s.Runs {
			t.Errorf("%s: %s has %d samples, want %d", row.Series, row.Name, len(row.Samples), s.Runs)
		}
		if row.Against != "" && len(r.Counterpart(row)) != len(row.Samples) {
			t.Errorf("%s: its counterpart %q does not have as many samples", row.Series, row.Against)
		}
		// The programs' times net of the prelude are differences.
		if row.Part != partEdge && row.Better != result.None && slices.Min(row.Samples) <= 0 {
			t.Errorf("%s: %s is %v", row.Series, row.Name, row.Samples)
		}
	}
	// doc prints the same from the file as the run did.
	if again := printed(t, "doc", s.output); again != out.String() {
		t.Logf("doc printed\n%s\nwant\n%s", again, &out)
		t.Error("doc does not print the same as the run")
	}
	// A page gets the text and pictures, with the same result twice.
	page := filepath.Join(t.TempDir(), "page.md")
	marks := fmt.Sprintf("# Page\n"+markBegin+"old\n"+markEnd+"between\n"+markBegin+markEnd+"after\n", markCharts, markCharts, markText, markText)
	if err := os.WriteFile(page, []byte(marks), 0o600); err != nil {
		t.Fatal(err)
	}
	var before []byte
	for range 2 {
		printed(t, "doc", s.output, "--into", page)
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"# Page\n", "](page/edge-xdp-ipv4.svg)\n", "between\n", "```\n" + out.String() + "```\n", "after\n"} {
			if !strings.Contains(string(text), want) || strings.Contains(string(text), "old\n") {
				t.Errorf("the page has no %q:\n%s", want, text)
			}
		}
		if before != nil && !bytes.Equal(before, text) {
			t.Error("the page differs when written again")
		}
		before = text
	}
	if _, err := os.Stat(filepath.Join(strings.TrimSuffix(page, ".md"), "edge-xdp-ipv4.svg")); err != nil {
		t.Error(err)
	}
	if same := printed(t, "compare", "--fail-on-worse", s.output, s.output); !strings.Contains(same, ": 0 better, 0 worse.") {
		t.Errorf("a run compared with itself gives\n%s", same)
	}
	pictures := t.TempDir()
	drawn := strings.Fields(printed(t, "chart", s.output, "--out", pictures))
	for _, name := range []string{"edge-xdp-ipv4", "edge-tc-ingress-ipv6", "edge-tc-egress-ipv4", "sockets-ipv4-1", "sockets-ipv6-64", "sockets-ratio-64",
		"balancer-requests-per-second", "mesh-requests-per-second-64", "mesh-p90-latency-64", "control-time", "control-memory"} {
		for _, kind := range []string{".svg", ".png"} {
			if path := filepath.Join(pictures, name+kind); !slices.Contains(drawn, path) {
				t.Errorf("%s is not among the pictures %q", path, drawn)
			}
		}
	}
}

// envoyProgram is where scripts/envoy installs it.
func envoyProgram(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../build/envoy/envoy")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Run("Envoy", func(t *testing.T) { t.Skip(err) })
	}
	return path
}

// printed runs a command of the program that measures nothing, and returns its output.
func printed(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	c := command()
	c.SetOut(&out)
	c.SetArgs(args)
	if err := c.Execute(); err != nil {
		t.Fatalf("bench %s: %v", strings.Join(args, " "), err)
	}
	return out.String()
}

// The hooks counted what they should, or the run fails.
func TestProve(t *testing.T) {
	before := bpf.SocketCounters{ConnectPass: 5, ConnectBalance: 7, ConnectReject: 1, DatagramPass: 3}
	const tcp, sendto, send = endpoint.RequestResponse, endpoint.UDPUnconnected, endpoint.UDPConnected
	connections := endpoint.Result{Connected: 10}
	datagrams := endpoint.Result{Sent: 20, Received: 20}
	lossy := endpoint.Result{Sent: 20, Received: 18, Resent: 2}
	connected := endpoint.Result{Connected: 4, Sent: 20, Received: 20}
	type counters = bpf.SocketCounters
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
		{"another program's datagrams were balanced", counters{DatagramBalance: 1}, unhooked, sendto, datagrams, "DatagramBalance 1 times"},
		{"an answer without its name", counters{DatagramBalance: 20, DatagramName: 19, FlowNew: 4, DatagramPass: 20}, balanced, sendto, datagrams, "DatagramName 19"},
		{"a flow was lost", counters{DatagramBalance: 20, DatagramName: 20, FlowNew: 5, FlowStale: 1, DatagramPass: 20}, balanced, sendto, datagrams, "FlowStale 1"},
		{"a server's answer is missing", counters{DatagramPass: 39}, passed, sendto, datagrams, "DatagramPass 39 times instead of 40"},
		{"two lost on the way there", counters{DatagramPass: 38}, passed, sendto, lossy, ""},
		{"two lost on the way back", counters{DatagramPass: 40}, passed, sendto, lossy, ""},
		{"more lost than retransmitted", counters{DatagramPass: 37}, passed, sendto, lossy, "DatagramPass 37"},
		{"connected sockets balanced", counters{ConnectBalance: 4, DatagramPass: 20}, balanced, send, connected, ""},
		{"connected sockets passed", counters{ConnectPass: 4, DatagramPass: 20}, passed, send, connected, ""},
		{"a connected socket's datagrams were looked up", counters{ConnectBalance: 4, DatagramPass: 40}, balanced, send, connected, "DatagramPass 40"},
	} {
		after := harness.Combine(before, c.counts, func(a, b uint64) uint64 { return a + b })
		err := prove(before, after, countersOf(c.path, c.mode, 4, c.result), c.result.Resent)
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: %v, want an error with %q", c.what, err, c.wrong)
		}
	}
}
