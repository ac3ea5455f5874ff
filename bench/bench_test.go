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

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/bench/forward"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/testrun"
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
	s := commandLine{
		Settings: harness.Settings{Program: node.Program(t), Runs: 1, Slice: 20 * time.Millisecond, CPUs: harness.CPUsAuto, Smoke: true,
			ControlPlane: "../build/controlplane", Envoy: envoyProgram(t)},
		output: filepath.Join(t.TempDir(), "results.json"),
		peer:   []string{peerFlag(t)},
	}
	rateSides, changesSides, socketRows := 15, 1, 162
	if forward.HasIPVS() {
		rateSides += 5
	}
	if err := controlplane.Find(s.ControlPlane); err == nil {
		rateSides, changesSides, socketRows = rateSides+2, changesSides+2, socketRows+40
	} else {
		t.Run("kube-proxy", func(t *testing.T) { t.Skip(err) })
	}
	meshProxies := 2
	if _, err := os.Stat(s.Envoy); err == nil {
		meshProxies++
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
		metric string
		rows   int
	}{
		"sockets": {"p50 latency", socketRows},
		// Two numbers of Services, two families, and the cases of three hooks.
		"hook":       {"time per call", 2 * 2 * (4 + 7 + 3)},
		"statistics": {"p50 latency", 2 * 5},
		"pods":       {"p50 latency", 24 * 4},
		// Half of the cases have another side.
		"offload": {"CPU time per packet", 6*3 + 3},
		// One proxy has all kinds of traffic.
		"mesh": {"requests per second", (meshProxies + 2) * 6},
		// Beeline and the yardstick: for each family, with few flows and with many; with DSR for IPv4
		// both, for IPv6 few. And for a peer, and for the yardstick with records.
		"edge":     {"time per packet", 2 * (2*(24+9) + 26 + 4 + 8 + 2 + 3)},
		"rates":    {"CPU time per packet", rateSides},
		"balancer": {"requests per second", 8},
		"control":  {"time", 5},
		"changes":  {"time", 2 * changesSides},
	} {
		got := 0
		for _, row := range r.Rows {
			if row.Part == part && row.Name == want.metric {
				got++
			}
		}
		if got != want.rows {
			t.Errorf("part %s has %d rows of %s, want %d", part, got, want.metric, want.rows)
		}
	}
	for _, row := range r.Rows {
		if row.Part != "control" && row.Part != "changes" && len(row.Samples) != s.Runs {
			t.Errorf("%s: %s has %d samples, want %d", row.Series, row.Name, len(row.Samples), s.Runs)
		}
		if row.Against != "" && len(r.Counterpart(row)) != len(row.Samples) {
			t.Errorf("%s: its counterpart %q does not have as many samples", row.Series, row.Against)
		}
		// The programs' times net of the prelude are differences.
		if row.Part != "edge" && row.Better != result.None && slices.Min(row.Samples) <= 0 {
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

// peerFlag loads a program that sends every packet back, and writes one for it.
func peerFlag(t *testing.T) string {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "peer", Type: ebpf.XDP, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 3), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	info, err := program.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	frame := testrun.Segment{From: netip.MustParseAddrPort("198.51.100.9:65534"), To: netip.MustParseAddrPort("192.0.2.80:80"),
		Protocol: unix.IPPROTO_TCP, Flags: testrun.FlagSYN}.Frame([6]byte{2, 1}, [6]byte{2, 2})
	path := filepath.Join(t.TempDir(), "packet")
	if err := os.WriteFile(path, frame[:], 0o600); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("peer=%d,packet=%s", id, path)
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
