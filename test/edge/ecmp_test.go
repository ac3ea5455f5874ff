// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// withECMP runs a test in worlds with two balancers, node-a and node-b, which read one file and share the
// packets to Services, and node-c with the backends. Both choose by Maglev, and Services have the kinds of DSR
// that applyKinds gives them.
func withECMP(t *testing.T, f func(t *testing.T, w *world)) {
	withEachDSR(t, []string{"--algorithm=maglev", "--maglev-table-size=1021"}, func(t *testing.T, w *world) {
		w.shareAddresses()
		f(t, w)
	})
}

// shareAddresses has the fabric route Services to both balancers.
func (w *world) shareAddresses() {
	w.t.Helper()
	var networks []netip.Prefix
	for family := range 2 {
		networks = append(networks, netip.MustParsePrefix(externalRanges[family]))
	}
	w.must(w.Balance(networks, w.Host("node-a"), w.Host("node-b")))
}

// cutOff removes a balancer from the fabric's routes. Its result adds it again.
func (w *world) cutOff(host string) (join func()) {
	w.t.Helper()
	join0, err := w.CutOff(w.Host(host))
	w.must(err)
	return func() { w.t.Helper(); w.must(join0()) }
}

const manyConnections = 300

// A longLived is a client's connection that sends a request from time to time.
type longLived struct {
	net.Conn
	kind, pod string
	err       error // why it has ended, nil while it lives
}

// openMany opens so many connections to each Service of applyKinds in each family.
func (w *world) openMany(count int) []*longLived {
	w.t.Helper()
	all := make([]*longLived, count)
	eachOf(w.t, count, "connection", func(ctx context.Context, i int) error {
		kind := i / 2 % len(dsrKinds)
		conn, err := w.Host("client").Dial(ctx, "tcp", w.address("ExternalIP", kind+1, i%2).String())
		if err != nil {
			return err
		}
		all[i] = &longLived{Conn: conn, kind: dsrKinds[kind]}
		answer, err := lab.Ask(ctx, conn, fmt.Sprint(i))
		all[i].pod = answer.Pod
		return err
	})
	w.t.Cleanup(func() {
		for _, c := range all {
			if c != nil {
				c.Close()
			}
		}
	})
	return all
}

// askMany sends a request on all live connections, and returns those that have ended since. A connection whose
// packets reach another pod is reset by it.
func (w *world) askMany(all []*longLived) (ended []*longLived) {
	w.t.Helper()
	eachOf(w.t, len(all), "connection", func(ctx context.Context, i int) error {
		c := all[i]
		if c.err != nil {
			return nil
		}
		answer, err := lab.Ask(ctx, c, fmt.Sprint(i))
		if c.err = err; err == nil && (answer.Pod != c.pod || answer.Payload != fmt.Sprint(i)) {
			return fmt.Errorf("answer %+v, of %s", answer, c.pod)
		}
		return nil
	})
	for _, c := range all {
		if c.err != nil {
			ended = append(ended, c)
		}
	}
	return ended
}

// newClients opens connections to the Services of applyKinds, one after the other, until ended is called; none
// may fail.
func (w *world) newClients() (ended func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	var clients sync.WaitGroup
	var asked [2]int
	for family := range asked {
		clients.Go(func() {
			for ; ctx.Err() == nil; asked[family]++ {
				to := w.address("ExternalIP", asked[family]%len(dsrKinds)+1, family)
				if _, err := w.ask("tcp", to); err != nil {
					w.t.Errorf("new connection %d to %s: %v", asked[family], to, err)
					return
				}
			}
		})
	}
	return func() {
		cancel()
		clients.Wait()
		for family, n := range asked {
			if n == 0 {
				w.t.Errorf("no new connection over IPv%d", 4+2*family)
			}
		}
	}
}

// awaitUntracked waits until no balancer creates entries for new connections any more: a GC pass has found no
// older flows with other backends.
func (w *world) awaitUntracked() {
	w.t.Helper()
	for i, kind := range dsrKinds {
		for family := range 2 {
			to := w.address("ExternalIP", i+1, family)
			w.eventually("connections to "+to.String()+" ("+kind+") need no conntrack entry", func() bool {
				before := w.countAll("new")
				for range 8 { // by either balancer
					if _, err := w.ask("tcp", to); err != nil {
						w.t.Fatalf("tcp to %s: %v", to, err)
					}
				}
				if w.countAll("new") == before {
					return true
				}
				time.Sleep(200 * time.Millisecond)
				return false
			})
		}
	}
}

// countAll is the sum of both balancers' counters of a reason.
func (w *world) countAll(reason string) uint64 {
	w.t.Helper()
	return w.countAt(w.agents["node-a"], reason) + w.countAt(w.agents["node-b"], reason)
}

// wantBothForward checks that each balancer has forwarded packets of clients.
func (w *world) wantBothForward(reason string) {
	w.t.Helper()
	for _, host := range []string{"node-a", "node-b"} {
		if w.countAt(w.agents[host], reason) == 0 {
			s, err := w.statusOf(w.agents[host])
			w.must(err)
			w.t.Errorf("%s counted nothing as %s: %v", host, reason, node.Counted(s.Edge.Counters))
		}
	}
}

// L3, X3: of two balancers behind ECMP one is cut off, and joins again, while connections are open and new ones
// begin: none is lost, neither balancer knows of the other's flows, and neither stores any.
func TestBalancerIsCutOff(t *testing.T) {
	withECMP(t, func(t *testing.T, w *world) {
		pods := []string{"c1", "c2", "c3"}
		w.applyKinds(pods...)
		w.awaitUntracked()
		all := w.openMany(manyConnections)
		perPod := map[string]int{}
		for _, c := range all {
			perPod[c.pod]++
		}
		if len(perPod) != len(pods) {
			t.Errorf("connections are served by %v, want %v", perPod, pods)
		}
		ended := w.newClients()
		for _, host := range []string{"node-b", "node-a"} {
			join := w.cutOff(host)
			w.wantLiving("while "+host+" is cut off", all)
			join()
			w.wantLiving("when "+host+" has joined again", all)
		}
		ended()
		w.wantBothForward("untracked")
		w.leaves(all, "c2", pods...)
	})
}

// leaves drains a pod. Its connections have no entries: each balancer says that it does not know them, and counts those
// that send something from then on.
func (w *world) leaves(all []*longLived, pod string, pods ...string) {
	w.t.Helper()
	kind := dsrKinds[0]
	var own []*longLived
	for _, c := range all {
		if c.kind == kind && c.pod == pod {
			own = append(own, c)
		}
	}
	s, slices := w.everywhere(kind, 1, pods...)
	s.Annotations = map[string]string{service.AnnotationDSR: kind}
	for _, slice := range slices {
		for i := range slice.Endpoints {
			if e := &slice.Endpoints[i]; e.Addresses[0] == w.Host(pod).Addr4.String() || e.Addresses[0] == w.Host(pod).Addr6.String() {
				e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
			}
		}
	}
	w.must(w.folder.Put(kind, objects(s, slices)...))
	w.await()
	balancers := []*node.Agent{w.agents["node-a"], w.agents["node-b"]}
	tracked := func(a *node.Agent) (connections int) {
		var shown api.Service
		text, err := a.CLI("service", "show", kind, "-o", "json")
		w.must(err)
		w.must(json.Unmarshal([]byte(text), &shown))
		for _, d := range shown.Draining {
			if text := d.String(); !d.Untracked || !strings.Contains(text, "not tracked here") {
				w.t.Errorf("%s says of %s: %s", a.Host.Name, d.Address, text)
			}
			connections += d.Connections
		}
		list, err := a.CLI("backend", "list")
		w.must(err)
		for _, addr := range []netip.Addr{w.Host(pod).Addr4, w.Host(pod).Addr6} {
			if !strings.Contains(list, netip.AddrPortFrom(addr, lab.PortTCP).String()) || len(shown.Draining) != 2 {
				w.t.Errorf("%s does not show %s:\n%s%+v", a.Host.Name, addr, list, shown.Draining)
			}
		}
		return connections
	}
	if n := tracked(balancers[0]) + tracked(balancers[1]); n >= len(own) { // a late ACK may be the first packet of some
		w.t.Errorf("%d of %d idle connections to %s are tracked", n, len(own), pod)
	}
	w.wantLiving("when "+pod+" drains", own)
	w.eventually("all connections that have sent something are tracked", func() bool { return tracked(balancers[0])+tracked(balancers[1]) == len(own) })
}

// wantLiving checks that no connection was lost.
func (w *world) wantLiving(when string, all []*longLived) {
	w.t.Helper()
	if lost := w.askMany(all); len(lost) > 0 {
		w.t.Fatalf("%s: %d of %d connections are lost, the first of %s to %s of %s: %v", when, len(lost), len(all), lost[0].kind, lost[0].RemoteAddr(), lost[0].pod, lost[0].err)
	}
}

// L3, X3, what docs/operate/ecmp.md promises if backends change and a balancer is lost within one idle timeout:
// connections from before the change survive if their backend still serves. Of newer ones only those can be
// lost whose slot has changed, because the other balancer takes them for older ones; and not if both backends
// of the slot are on one node, which has an entry for the connection.
func TestBalancerIsCutOffAsBackendsChange(t *testing.T) {
	withECMP(t, func(t *testing.T, w *world) {
		w.applyKinds("c1", "c2")
		w.awaitUntracked()
		before := w.openMany(manyConnections)
		w.applyKinds("c1", "c2", "c3")
		w.wantLiving("with one more backend", before)
		after := w.openMany(manyConnections)
		changed := 0
		for _, c := range after {
			if c.pod == "c3" {
				changed++
			}
		}
		join := w.cutOff("node-a")
		w.wantLiving("with one more backend and one balancer less", before)
		// Both backends of a slot are on node-c here, which knows better than the balancer.
		w.wantLiving("with one more backend and one balancer less, as long as the backends' node remembers", after)
		// As if they were on two nodes.
		_, err := w.agents["node-c"].CLI("flow", "flush", "--all")
		w.must(err)
		lostBefore, lost := len(w.askMany(before)), len(w.askMany(after))
		t.Logf("with one more backend (3 instead of 2) and one of two balancers less: of %d connections that began between the two, %d have the new backend: none is lost where the slot's backends are on one node that remembers, else %d, and %d of %d from before",
			len(after), changed, lost, lostBefore, len(before))
		// Half of the connections with the new backend came through node-b, where they have entries;
		// few slots change otherwise.
		if limit := changed + len(after)/20; lost > limit || lostBefore > len(before)/20 {
			t.Errorf("%d of %d and %d of %d are lost, want at most %d, and a twentieth", lost, len(after), lostBefore, len(before), limit)
		}
		join()
	})
}
