// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"testing"
)

// A held connection stays open during a test.
type held struct {
	net.Conn
	what string
	to   netip.AddrPort
	pod  string
}

// hold opens a connection in each family from each client.
func (w *world) hold(from string, n uint8) []held {
	w.t.Helper()
	var all []held
	for _, host := range w.hosts(from) {
		for _, f := range families {
			conn := w.open(host, f, f.clusterIP(n))
			what := fmt.Sprintf("connection of %s to %s (%s)", host.Name, f.clusterIP(n), f.name)
			all = append(all, held{conn, what, f.clusterIP(n), w.served(conn)})
		}
	}
	return all
}

// wantAlive checks that held connections are unchanged.
func (w *world) wantAlive(t *testing.T, when string, all []held) {
	t.Helper()
	for _, h := range all {
		if got := w.served(h.Conn); got != h.pod {
			t.Errorf("%s, %s: %s answers, want %s", h.what, when, got, h.pod)
		}
		peer, err := peerOf(h.Conn)
		if err != nil || peer != h.to {
			t.Errorf("%s, %s: getpeername says %v (%v), want %v", h.what, when, peer, err, h.to)
		}
	}
}

// peerOf asks the kernel again: RemoteAddr is the first result.
func peerOf(conn net.Conn) (peer netip.AddrPort, err error) {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return peer, err
	}
	control := raw.Control(func(fd uintptr) { peer, err = peerName(int(fd)) })
	if control != nil {
		err = control
	}
	return peer, err
}

// R30, R12: a connection keeps its backend whatever happens to the backend and to the Service.
func TestConnectionOutlivesItsBackendAndService(t *testing.T) {
	w := startWorld(t, "node-a")
	s, slices := w.web("web", 1, "b1")
	w.apply("web", objects(s, slices)...)
	before := w.hold(clients, 1)
	wantNew := func(want string) {
		t.Helper()
		inEachFamily(t, func(t *testing.T, f family) { w.wantMeet(t, clients, f, f.clusterIP(1), want) })
	}

	endpoints(slices, w.Host("b1"), dying)
	w.apply("web", objects(s, slices)...)
	w.wantAlive(t, "with a terminating backend", before)
	wantNew(rejected)

	w.apply("web", objects(w.web("web", 1, "b2"))...)
	w.wantAlive(t, "with other backends", before)
	wantNew("b2")

	w.remove("web")
	w.wantAlive(t, "without the Service", before)
	wantNew(dropped)

	// The address may be given to another Service.
	w.apply("other", objects(w.web("other", 1, "a2"))...)
	w.wantAlive(t, "with another Service at the address", before)
	wantNew("a2")
}

// R37: everything works without the agent: old connections, new ones and refusals.
func TestTrafficOutlivesTheAgent(t *testing.T) {
	for name, end := range map[string]func(*world) error{
		"stopped": func(w *world) error { return w.agent().Stop() },
		"killed":  func(w *world) error { return w.agent().Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			w := startWorld(t, "node-a")
			w.write("empty", objects(w.web("empty", 2, ""))...)
			w.apply("web", objects(w.web("web", 1, "a2 b1"))...)
			before := w.hold(clients, 1)
			l := w.startLoad("a Service", w.hosts(clients), ipv4, ipv4.clusterIP(1), "a2 b1")
			l.awaitMore(w, 100)
			w.must(end(w))
			l.awaitMore(w, 100)
			w.wantAlive(t, "without the agent", before)
			inEachFamily(t, func(t *testing.T, f family) {
				w.wantMeet(t, clients, f, f.clusterIP(1), "a2 b1")
				w.wantMeet(t, clients, f, f.clusterIP(2), rejected)
				w.wantMeet(t, clients, f, f.clusterIP(3), dropped)
			})
			meanwhile := w.hold(clients, 1)
			w.start()
			w.wantAlive(t, "with a new agent", append(before, meanwhile...))
			l.awaitMore(w, 100)
			l.wantNoFailure(t)
		})
	}
}

// R37: a new agent continues where the old one ended: the IDs in the tables stay, the programs are the new
// agent's, the counters continue.
func TestRestartKeepsIDs(t *testing.T) {
	w := startWorld(t, "node-a")
	w.write("sticky", objects(w.sticky("sticky", 1, "a2 b1 b2", 600))...)
	s, slices := w.balanced("ranges", 20, "b1 b2")
	s.Spec.LoadBalancerSourceRanges = []string{"10.10.0.0/16", "fd00:10::/32"}
	w.apply("ranges", objects(s, slices)...)
	before, counted := w.observe(), w.counters(w.agent())
	if _, err := ask(w.Host("a1"), ipv4, ipv4.clusterIP(1)); err != nil {
		t.Fatal(err)
	}
	for _, end := range []func() error{w.agent().Stop, w.agent().Kill, w.agent().Stop} {
		w.must(end())
		w.start()
		after := w.observe()
		if after.services != before.services || after.backends != before.backends {
			t.Errorf("after a restart the tables hold\n%s\n%s\nwant, as before,\n%s\n%s",
				after.services, after.backends, before.services, before.backends)
		}
		for hook, id := range after.programs {
			if id == before.programs[hook] {
				t.Errorf("hook %s still runs program %d of the earlier agent", hook, id)
			}
			if after.links[hook] != before.links[hook] {
				t.Errorf("hook %s has link %d, want %d as before: there was a gap", hook, after.links[hook], before.links[hook])
			}
		}
		before = after
	}
	if now := w.counters(w.agent()); now.ConnectBalance != counted.ConnectBalance+1 {
		t.Errorf("the counters say %d connections, want %d: they must continue", now.ConnectBalance, counted.ConnectBalance+1)
	}
}

// observation is what the commands show of an agent.
type observation struct {
	services, backends string
	programs, links    map[string]uint32
}

func (w *world) observe() observation {
	w.t.Helper()
	status, err := w.agent().Status()
	w.must(err)
	o := observation{programs: map[string]uint32{}, links: map[string]uint32{}}
	for _, a := range status.Attachments {
		o.programs[a.Hook], o.links[a.Hook] = a.ProgramID, a.LinkID
	}
	services, err := w.agent().CLI("service", "list", "-o", "json")
	w.must(err)
	o.services = w.uncounted(services)
	o.backends, err = w.agent().CLI("backend", "list", "-o", "json")
	w.must(err)
	return o
}

// uncounted removes the statistics of connections from the JSON of Services.
func (w *world) uncounted(text string) string {
	w.t.Helper()
	var value any
	w.must(json.Unmarshal([]byte(text), &value))
	items := []any{value}
	if list, ok := value.(map[string]any)["items"].([]any); ok {
		items = list
	}
	for _, item := range items {
		delete(item.(map[string]any), "connections")
	}
	rest, err := json.MarshalIndent(value, "", "  ")
	w.must(err)
	return string(rest)
}

// R37, R4: the next agent follows changes made while there was none.
func TestRestartFollowsWhatHappenedMeanwhile(t *testing.T) {
	w := startWorld(t, "node-a")
	w.write("gone", objects(w.web("gone", 1, "b1"))...)
	w.write("changed", objects(w.web("changed", 2, "b1"))...)
	w.apply("same", objects(w.web("same", 3, "b1"))...)
	w.must(w.agent().Kill())
	w.must(w.folder.Remove("gone"))
	w.write("changed", objects(w.web("changed", 2, "b2"))...)
	w.write("new", objects(w.web("new", 4, "a2"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		w.wantMeet(t, clients, f, f.clusterIP(1), "b1")
		w.wantMeet(t, clients, f, f.clusterIP(2), "b1")
		w.wantMeet(t, clients, f, f.clusterIP(4), dropped)
	})
	w.start()
	inEachFamily(t, func(t *testing.T, f family) {
		w.wantMeet(t, clients, f, f.clusterIP(1), dropped)
		w.wantMeet(t, clients, f, f.clusterIP(2), "b2")
		w.wantMeet(t, clients, f, f.clusterIP(3), "b1")
		w.wantMeet(t, clients, f, f.clusterIP(4), "a2")
	})
}

// K4: agents of two nodes do not see each other's sockets; a connection from a host without an agent is not
// handled.
func TestNodesAreSeparate(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("web", objects(w.web("web", 1, "a2 b1"))...)
	second := w.newAgent(w.Host("node-b"))
	check := func(onB string) {
		t.Helper()
		for _, f := range []family{ipv4, ipv6} {
			w.wantMeet(t, clients, f, f.clusterIP(1), "a2 b1")
			w.wantMeet(t, "b2 node-b", f, f.clusterIP(1), onB)
			w.wantMeet(t, "client", f, f.clusterIP(1), alone)
		}
	}
	check(alone)
	w.must(second.Start())
	check("a2 b1")
	w.must(second.Kill())
	if out, err := second.CLI("cleanup"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	check(alone)
}
