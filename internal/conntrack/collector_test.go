// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack/conntracktest"
)

// subscriber logs its calls.
type subscriber struct {
	name string
	log  *[]string
	err  error // of End
}

func (s *subscriber) note(what string)    { *s.log = append(*s.log, s.name+" "+what) }
func (s *subscriber) Begin()              { s.note("begin") }
func (s *subscriber) Entry(Tuple, *Entry) { s.note("entry") }
func (s *subscriber) End() error          { s.note("end"); return s.err }

// brokenTable is a table whose walk fails.
type brokenTable struct{ conntracktest.Table }

func (brokenTable) Walk(func(Tuple, *Entry) bool) error { return errors.New("planted") }

// In a pass every subscriber is called with each entry of both tables, after all programs have ended that
// run at Begin. End is called only after a complete walk.
func TestSubscribers(t *testing.T) {
	now := bpf.Now()
	both := [2]int{conntracktest.Both, conntracktest.Both}
	complete := []string{"a begin", "b begin", "wait", "a entry", "b entry", "a entry", "b entry", "a entry", "b entry", "a entry", "b entry", "a end", "b end"}
	for _, c := range []struct {
		name        string
		waits, ends error
		broken      bool
		want        []string
		problem     string // of status
	}{
		{name: "complete", want: complete},
		{name: "a subscriber fails", ends: errors.New("no room"), want: complete, problem: "no room"},
		{name: "programs cannot be waited for", waits: errors.New("no wait"), want: complete[:3], problem: "no wait"},
		{name: "the walk fails", broken: true, want: complete[:3], problem: "planted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			assured, unreplied := conntracktest.Table{}, conntracktest.Table{}
			assured.Put(tcp, client, backend, both, [2]uint32{now, now})
			unreplied.Put(udp, client, backend, both, [2]uint32{now, now})
			tables := &Tables{Assured: assured, Unreplied: unreplied}
			if c.broken {
				tables.Unreplied = brokenTable{unreplied}
			}
			var log []string
			wait := func() error { log = append(log, "wait"); return c.waits }
			collector := NewCollector(tables, wait, Config{Timeouts: DefaultTimeouts, Log: slog.New(slog.NewTextHandler(io.Discard, nil))},
				&subscriber{"a", &log, c.ends}, &subscriber{"b", &log, nil})
			collector.Collect()
			if !slices.Equal(log, c.want) {
				t.Errorf("calls %v, want %v", log, c.want)
			}
			var s Status
			problems := collector.CompleteStatus(&s, nil)
			if len(problems) > 0 != (c.problem != "") || !strings.Contains(fmt.Sprint(problems), c.problem) || s.LastGC.IsZero() {
				t.Errorf("status %+v, conditions %v; want %q", s, problems, c.problem)
			}
			if left := len(assured) + len(unreplied); left != 4 {
				t.Errorf("%d entries left, want 4", left)
			}
		})
	}
}

// A pass that succeeds leaves the error of stale UDP flows in the status until their removal is repeated and
// succeeds, too.
func TestStaleUDPIsRetried(t *testing.T) {
	failed := errors.New("planted")
	wait := func() error { return failed }
	tables := &Tables{Assured: conntracktest.Table{}, Unreplied: conntracktest.Table{}}
	c := NewCollector(tables, func() error { return wait() }, Config{
		Timeouts: DefaultTimeouts, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Serves: func(bpf.Connection) bool { return true },
	})
	c.deleteStaleUDP()
	wait = func() error { return nil }
	c.Collect()
	if problems := c.CompleteStatus(new(Status), nil); !strings.Contains(fmt.Sprint(problems), "planted") {
		t.Errorf("after a pass the conditions are %v", problems)
	}
	c.retryStaleUDP()
	if problems := c.CompleteStatus(new(Status), nil); len(problems) > 0 {
		t.Errorf("after the retry the conditions are %v", problems)
	}
}
