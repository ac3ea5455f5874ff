// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"net"
	"testing"
	"time"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// openConnection is a client's connection that stays open.
type openConnection struct {
	conn net.Conn
	pod  string
}

// asks sends a request, and returns who answers.
func (c *openConnection) asks(ctx context.Context) (string, error) {
	answer, err := lab.Ask(ctx, c.conn, "hello")
	return answer.Pod, err
}

// opens opens connections to Service 1, of both families.
func (w *world) opens(ctx context.Context, n int) (all []openConnection) {
	w.t.Helper()
	for i := range n {
		conn, err := w.Host("client").Dial(ctx, "tcp", w.address("ExternalIP", 1, i%2).String())
		w.must(err)
		w.t.Cleanup(func() { conn.Close() })
		answer, err := lab.Ask(ctx, conn, "hello")
		w.must(err)
		all = append(all, openConnection{conn, answer.Pod})
	}
	return all
}

// S4: connections to remote backends work without conntrack entries, also when backends are added and removed
// and the balancer's agent is replaced; only then do some get entries.
func TestConnectionsWithoutRecords(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
		defer cancel()
		w := startWorld(t, "--edge-mode="+mode, "--algorithm=maglev", "--maglev-table-size=251", "--dsr=ipip")
		w.lead()
		log := &node.Log{}
		second := &node.Agent{Host: w.Host("node-b"), Program: program, Manifests: w.folder.Path, MaxFlows: fewFlows, Flags: w.agent.Flags, Log: log}
		t.Cleanup(func() {
			if err := second.Kill(); err != nil {
				t.Errorf("the agent of node-b ended before it was killed: %v", err)
			}
			if t.Failed() {
				t.Logf("the agent of node-b printed:\n%s", log)
			}
		})
		w.must(second.Start())
		put := func(pods ...string) {
			t.Helper()
			w.must(w.folder.Put("web", objects(w.everywhere("web", 1, pods...))...))
			w.must(w.folder.Await(w.agent, second))
		}
		put("b1", "b2")

		// A new frontend is tracked until a GC pass finds no entries with other backends.
		w.eventually("no packet is tracked", func() bool {
			before := w.status().Edge.Counters["new"]
			w.opens(ctx, 2) // one of each family
			if w.status().Edge.Counters["new"] == before {
				return true
			}
			time.Sleep(100 * time.Millisecond)
			return false
		})
		_, err := w.agent.CLI("flow", "flush", "--all")
		w.must(err)
		before := w.status().Edge.Counters["new"]
		connections := w.opens(ctx, 40)
		if now := w.status().Edge.Counters["new"]; now != before {
			t.Errorf("%d of 40 connections have a conntrack entry", now-before)
		}
		goOn := func(when string) {
			t.Helper()
			for i, c := range connections {
				if pod, err := c.asks(ctx); err != nil || pod != c.pod {
					t.Errorf("%s: connection %d is with %s, but %q answers, %v", when, i, c.pod, pod, err)
				}
			}
		}
		goOn("nothing has changed")
		put("b1", "b2", "b3", "a1")
		goOn("two backends were added")
		if s := w.status().UntrackedSlots; s.Contested == 0 || s.Contested >= s.Slots || s.Seconds == 0 {
			t.Errorf("slots have changed, but the status is %+v", s)
		}
		if w.status().Edge.Counters["new"] == before {
			t.Error("no connection has an entry, though backends were added")
		}
		w.must(w.agent.Kill())
		w.must(w.agent.Start())
		w.must(w.folder.Await(w.agent))
		goOn("the agent was replaced")
		put("b1", "b2", "a1")
		goOn("one was removed")
		for family := range 2 {
			w.wantServed("tcp", w.address("ExternalIP", 1, family), "a1", "b1", "b2")
		}
		goOn("in the end")
	})
}
