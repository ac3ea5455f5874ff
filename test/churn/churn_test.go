// SPDX-License-Identifier: Apache-2.0

package churn

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// warmUp is how long endpoints change before the agent is measured: by then its memory has the size that this
// load needs.
const warmUp = 5 * time.Second

// auditInterval lets audits happen during the changes and after them.
const auditInterval = 3 * time.Second

// S4, R29, R30: with a change every 5 ms, of 5,000 endpoints whose servers stop 3 s after they were removed, no
// request to a Service that always had a ready endpoint fails. In the end the tables are those of a fresh
// agent, an audit finds nothing to repair, and the agent has not grown.
func TestChurn(t *testing.T) {
	l := lab.New(t)
	var pods []*pod
	for _, name := range []string{"a2", "a3", "b1", "b2", "b3"} {
		pods = append(pods, startPod(t, l.Host(name)))
	}
	folder := &node.Folder{Path: t.TempDir()}
	must(t, folder.Put("cluster", node.Cluster(l)...))
	c, err := newCluster(folder, pods)
	must(t, err)
	for _, s := range c.services {
		must(t, c.write(s))
	}
	a := startAgent(t, l.Host("node-a"), folder)
	run := startClients(t, c, l.Host("a1"), l.Host("node-a"))

	_, err = c.churn(warmUp)
	must(t, err)
	before := sizeOf(t, a)
	took, err := c.churn(*lasting)
	must(t, err)
	c.stops.Wait()
	after := sizeOf(t, a)
	t.Logf("%d changes in %v; the agent before: %v; after: %v", *lasting/interval, took.Round(time.Millisecond), before, after)
	run.stop()
	for _, kind := range run.tallies {
		kind.want(t)
	}
	wantNotGrown(t, a, before)
	c.wantTables(t, l, a)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func startAgent(t *testing.T, host *lab.Host, folder *node.Folder) *node.Agent {
	t.Helper()
	log := &node.Log{}
	a := &node.Agent{Host: host, Program: program, Manifests: folder.Path, Log: log,
		Flags: []string{"--audit-interval", auditInterval.String()}}
	must(t, a.Start())
	t.Cleanup(func() {
		if err := a.Kill(); err != nil {
			t.Errorf("the agent on %s ended before it was killed: %v", host.Name, err)
		}
		if t.Failed() {
			t.Logf("the agent on %s printed:\n%s", host.Name, log)
		}
	})
	return a
}

// running has all clients.
type running struct {
	tallies []*tally
	stop    func()
}

// So many long-lived sockets of each kind are on each host in each family.
const lastingSockets = 5

// startClients starts all kinds of clients on hosts, in both families.
func startClients(t *testing.T, c *cluster, hosts ...*lab.Host) running {
	t.Helper()
	end, clientsRunning := make(chan struct{}), &sync.WaitGroup{}
	short, long := &tally{kind: "connections for a request"}, &tally{kind: "long connections"}
	unconnected, connected := &tally{kind: "unconnected UDP"}, &tally{kind: "connected UDP"}
	for _, host := range hosts {
		for family := range 2 {
			group := &clients{cluster: c, host: host, family: family, end: end, running: clientsRunning}
			group.run(short, group.short)
			for range lastingSockets {
				group.run(long, group.long())
				group.run(connected, group.connected())
			}
			one, err := group.unconnected()
			must(t, err)
			group.run(unconnected, one)
		}
	}
	stop := sync.OnceFunc(func() {
		close(end)
		clientsRunning.Wait()
	})
	t.Cleanup(stop)
	return running{[]*tally{short, long, unconnected, connected}, stop}
}

// wantTables checks the tables after the changes.
func (c *cluster) wantTables(t *testing.T, l *lab.Lab, a *node.Agent) {
	t.Helper()
	must(t, c.folder.Put("cluster", node.Cluster(l)...)) // for a new revision
	must(t, c.folder.Await(a))
	quiet := time.Now()
	got, err := a.Tables()
	must(t, err)
	c.wantPlan(t, got)

	fresh := startAgent(t, l.Host("node-b"), c.folder)
	want, err := fresh.Tables()
	must(t, err)
	wantSame(t, "frontend", node.Contents(got), node.Contents(want))
	must(t, a.WaitFor("without entries that it does not need", func(s *api.Status) bool {
		other, err := fresh.Status()
		return err == nil && fills(s) == fills(other)
	}))
	must(t, a.WaitFor("audited", func(s *api.Status) bool { return s.Sync.LastAudit.After(quiet) }))
	status, err := a.Status()
	must(t, err)
	if status.Sync.Repairs != 0 || status.Sync.Failures != 0 || status.Sync.Failing != 0 {
		t.Errorf("audits found %d differences, %d steps failed, %d frontends are not as wanted; want none",
			status.Sync.Repairs, status.Sync.Failures, status.Sync.Failing)
	}
}

// fills is the number of entries in each table.
func fills(s *api.Status) string { return fmt.Sprint(s.Tables) }

// wantPlan checks each Service's backends against its endpoints.
func (c *cluster) wantPlan(t *testing.T, tables *api.Tables) {
	t.Helper()
	want, got := map[string]string{}, map[string]string{}
	for _, s := range c.services {
		for family, ip := range s.ips {
			want[ip.String()+"/TCP"] = s.usable(family)
			want[ip.String()+"/UDP"] = s.usable(family)
		}
	}
	for _, s := range tables.Services {
		for _, f := range s.Frontends {
			if strings.HasSuffix(f.Address, ":80") {
				got[fmt.Sprintf("%s/%s", f.Address, f.Protocol)] = node.Decision(f.FromPods)
			}
		}
	}
	wantSame(t, "ClusterIP", got, want)
}
