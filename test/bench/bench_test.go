// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/test/bench/endpoint"
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
		output: filepath.Join(t.TempDir(), "results.json"),
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
	if len(r.Sockets) != len(scenarios()) || len(r.Hook) != 2*2*4 || len(r.Control) != 1 {
		t.Errorf("%d socket, %d hook and %d control results", len(r.Sockets), len(r.Hook), len(r.Control))
	}
	for _, sockets := range r.Sockets {
		for i, samples := range sockets.Samples {
			if len(samples) != s.runs || samples[0].Operations == 0 || samples[0].P50 <= 0 || samples[0].CPU <= 0 {
				t.Errorf("%s, %s: %+v", sockets.Scenario, sideNames[i], samples)
			}
		}
	}
	for _, hook := range r.Hook {
		if len(hook.Samples) != s.runs || hook.Samples[0] <= 0 {
			t.Errorf("%+v", hook)
		}
	}
}

func TestProve(t *testing.T) {
	before := datapath.SocketCounters{ConnectPass: 5, ConnectBalance: 7, ConnectReject: 1}
	after := func(pass, balance, reject uint64) datapath.SocketCounters {
		return datapath.SocketCounters{ConnectPass: 5 + pass, ConnectBalance: 7 + balance, ConnectReject: 1 + reject}
	}
	for _, c := range []struct {
		what  string
		after datapath.SocketCounters
		path  path
		n     uint64
		wrong string // empty if it is proved
	}{
		{"every connection balanced", after(0, 10, 0), balanced, 10, ""},
		{"every connection passed", after(10, 0, 0), passed, 10, ""},
		{"nothing seen", after(0, 0, 0), unhooked, 10, ""},
		{"the hook did not run", after(0, 0, 0), balanced, 10, "0 sent to a backend"},
		{"one connection missed", after(0, 9, 0), balanced, 10, "9 sent to a backend"},
		{"the direct side was balanced", after(0, 10, 0), passed, 10, "10 sent to a backend"},
		{"the bare side was hooked", after(10, 0, 0), unhooked, 10, "10 left alone"},
		{"somebody else connected, too", after(1, 10, 0), balanced, 10, "1 left alone"},
		{"one was refused", after(0, 10, 1), balanced, 10, "refused"},
	} {
		err := prove(before, c.after, c.path, c.n)
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: %v, want an error with %q", c.what, err, c.wrong)
		}
	}
}
