// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/part/optout"
	"beeline.io/beeline/internal/report/assess"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/tables/reconcile"
)

// largeNode is a node without problems, with more of everything than a screen has lines.
func largeNode() *api.Status {
	s := &api.Status{
		Running: true, Answered: true, Version: "v1", PID: 1, Started: time.Now(), Node: "node-a", BPFFS: "/sys/fs/bpf/beeline",
		Sync: reconcile.Stats{Synced: true}, SocketCounters: &bpf.SocketCounters{ConnectBalance: 7},
		Edge:   &api.Edge{Mode: "auto", Conntrack: conntrack.Status{Entries: 2, Limit: 100}},
		Health: &api.HealthStatus{Backends: 3},
		Counts: api.Counts{Services: 10000, MaglevServices: 5, DSRServices: 5},
	}
	for i := range 200 {
		s.Edge.Devices = append(s.Edge.Devices, api.EdgeDevice{Name: fmt.Sprintf("cali%d", i), Mode: "tc"})
		s.OptedOut.Pods = append(s.OptedOut.Pods, optout.Pod{Namespace: "default", Name: fmt.Sprintf("p%d", i), Found: true})
		s.Attachments = append(s.Attachments, bpf.Attachment{Hook: "connect4", Cgroup: "/sys/fs/cgroup"})
		s.Tables = append(s.Tables, reconcile.Usage{Table: fmt.Sprintf("table%d", i), Used: uint32(i % 90), Limit: 100})
		s.Source.Problems = append(s.Source.Problems, condition.SourceNote.New("file%d.yaml: a kind that no Service needs", i))
	}
	assess.Status(s)
	return s
}

// On a node without problems, status fits on a screen of 24 lines; with -v it shows everything.
func TestStatusFitsOnAScreen(t *testing.T) {
	var short, long bytes.Buffer
	s := largeNode()
	statusText(&short, s, false)
	statusText(&long, s, true)
	if n := strings.Count(short.String(), "\n"); n > 23 || !strings.HasPrefix(short.String(), "All is well.\n") { // and the prompt
		t.Errorf("%d lines:\n%s", n, &short)
	}
	for _, words := range []string{"cali0 (tc)", "and 194 more", "fullest: table89, 89 of 100", "200 programs attached to /sys/fs/cgroup", "200 pods without", "7 to Services", "beeline status -v"} {
		if !strings.Contains(short.String(), words) {
			t.Errorf("lacks %q:\n%s", words, &short)
		}
	}
	for _, words := range []string{"All is well.", "cali199", "table199", "p199"} {
		if !strings.Contains(long.String(), words) {
			t.Errorf("with -v it lacks %q", words)
		}
	}
	// The pins of an agent that hangs look the same.
	var unasked bytes.Buffer
	s.Answered = false
	statusText(&unasked, s, false)
	if !strings.Contains(unasked.String(), "was not asked") || strings.Contains(unasked.String(), "All is well") {
		t.Errorf("of an agent that was not asked:\n%s", &unasked)
	}
}

// A component's status line is shown with and without -v, and its conditions are among the others.
func TestStatusOfComponents(t *testing.T) {
	s := largeNode()
	s.Components = []api.ComponentStatus{{Name: "counter", State: "packets 5"}}
	s.ComponentConditions = condition.List{condition.DeviceNotServed.New("packets are not counted").At("eth7")}
	assess.Status(s)
	for _, verbose := range []bool{false, true} {
		var text bytes.Buffer
		statusText(&text, s, verbose)
		for _, words := range []string{"1 error.", "DeviceNotServed: eth7: packets are not counted", "Component counter:"} {
			if !strings.Contains(text.String(), words) {
				t.Errorf("verbose %t: lacks %q:\n%s", verbose, words, &text)
			}
		}
	}
}

// Exit codes and the first line follow from the worst severity. "All is well." means neither errors nor
// warnings.
func TestSeverityDecides(t *testing.T) {
	bad, odd, note := condition.NotSynced.New("a"), condition.PortHeld.New("b"), condition.SourceNote.New("c")
	for _, test := range []struct {
		list condition.List
		code int
		head string
	}{
		{nil, 0, "All is well."},
		{condition.List{note}, 0, "All is well."},
		{condition.List{odd, note}, 4, "1 warning."},
		{condition.List{odd, odd.At("x")}, 4, "2 warnings."},
		{condition.List{bad, odd, note}, 3, "1 error, 1 warning."},
		{condition.List{bad, bad.At("x")}, 3, "2 errors."},
	} {
		code := 0
		if exit := (exitError{}); errors.As(judged(test.list), &exit) {
			code = exit.code
		}
		if head := headline(test.list); code != test.code || head != test.head {
			t.Errorf("%v: exit code %d and %q, want %d and %q", test.list, code, head, test.code, test.head)
		}
	}
}

// Conditions of one kind are grouped, with the remedy below them; only the first of many are shown, the others
// counted.
func TestConditionsText(t *testing.T) {
	var all condition.List
	for i := range 5 {
		all = append(all, condition.AddressTaken.New("port %d is taken", i).At("Service default/web"))
	}
	all = append(all, condition.DeviceNotServed.New("device eth0 is not served").At("eth0"), condition.SourceNote.New("skipped"))
	var got bytes.Buffer
	conditionsText(&got, headline(all), all, 3)
	want := `6 errors.
error    AddressTaken: Service default/web: port 0 is taken
error    AddressTaken: Service default/web: port 1 is taken
error    AddressTaken: Service default/web: port 2 is taken
         ... and 2 more of these: -o json lists all
         what to do: change one of them
error    DeviceNotServed: device eth0 is not served
         what to do: see the reason in the message; set --devices to the devices to serve
info     SourceNote: skipped
`
	if got.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", &got, want)
	}
}
