// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/report/explain"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

func exitCode(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return -1
}

// explain explains a packet.
func (w *world) explain(args ...string) explanation { return w.explained("packet", args...) }

// explanation is what explain says. A failed test prints it as JSON: the backends and addresses are behind pointers.
type explanation struct{ explain.Answer }

func (a explanation) String() string { return node.JSON(a.Answer) }

// explained explains a packet or a connect.
func (w *world) explained(what string, args ...string) (a explanation) {
	w.t.Helper()
	text, err := w.agent.CLI(append([]string{"explain", what, "-o", "json"}, args...)...)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		w.t.Fatalf("explain %s %q: %s", what, args, exit.Stderr)
	}
	w.must(err)
	w.must(json.Unmarshal([]byte(text), &a))
	return a
}

// explained is a request with its explanation, and what that must contain.
type explained struct {
	name, network          string
	from, to               netip.AddrPort
	answer                 explanation
	reason, service, rules string
}

// What explain says of a packet is what happens to a client that sends it: the reason, the backend, and what
// the backend sees. It leaves no trace.
func TestExplain(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorld(t, "--edge-mode="+mode)
		w.services()
		var all []*explained
		for i, c := range []struct {
			name, network, kind    string
			n                      int
			reason, service, rules string
		}{
			{"balanced", "tcp", "NodePort", 1, "new", "web", "R17 R19 R22"},
			{"balanced", "udp", "NodePort", 1, "new", "web", "R17 R19 R22"},
			{"balanced", "tcp", "ExternalIP", 1, "new", "web", "R17 R19"},
			{"balanced", "udp", "ClusterIP", 5, "new", "here", "R16 R19 R20"},
			{"balanced", "tcp", "LoadBalancer", 5, "new", "here", "R17 R19"},
			{"kept", "tcp", "NodePort", 6, "new", "sticky", "R17 R19 R22 R27"},
			{"to be kept", "tcp", "NodePort", 6, "new", "sticky", "R17 R19 R22 R27"},
			{"no endpoint", "tcp", "NodePort", 2, "rejected", "none", "R17 R18 R22"},
			{"other port", "udp", "ClusterIP", 1, "rejected", "web", "R21"},
			{"not local", "udp", "NodePort", 3, "drop_policy", "there", "R17 R18 R22"},
			{"not admitted", "tcp", "LoadBalancer", 4, "drop_source", "admitted", "R25"},
			{"unused", "udp", "ClusterIP", 200, "drop_no_service", "", "R21"},
			{"not ours", "udp", "NodePort", 200, "not_service", "", ""},
		} {
			family := (i + len(mode)) % 2 // the other one in the other mode
			to := w.address(c.kind, c.n, family)
			if c.name == "other port" {
				to = netip.AddrPortFrom(to.Addr(), 81)
			}
			if c.name == "kept" { // in one family
				w.ask(c.network, to)
			}
			all = append(all, &explained{
				name: c.name, network: c.network, from: addresses(w.Host("client"), w.clientPort())[family], to: to,
				reason: c.reason, service: c.service, rules: c.rules,
			})
		}
		known := w.open("udp", w.address("NodePort", 1, 0)) // TCP has keepalives
		var pod string
		w.eventually("the flow is established, and so outlives the test", func() bool {
			pod = w.served(known)
			return slices.ContainsFunc(w.flows(), func(f conntrack.Flow) bool {
				return f.State == "established" && f.Client.String() == known.LocalAddr().String()
			})
		})
		w.settle()
		before := w.state()
		for _, c := range all {
			c.answer = w.explain(c.from.String(), c.to.String()+"/"+c.network)
			c.wantAnswer(t)
		}
		old := w.explain(known.LocalAddr().String(), known.RemoteAddr().String()+"/udp")
		if old.FlowState != "established" || old.Backend == nil || w.podAt(old.Rewritten.Destination.Addr()) != pod || old.Service != "default/web" {
			t.Errorf("explain of a flow with backend %s says %+v", pod, old)
		}
		w.unchanged(before)
		text, err := w.agent.CLI("explain", "packet", all[0].from.String(), all[0].to.String())
		for _, words := range []string{"verdict     balance: new flow", "rules       R17: NodePorts, external IPs", "\n            R19: the source", "\n            R22: a NodePort", "<- chosen", all[0].answer.Rewritten.String()} {
			if err != nil || !strings.Contains(text, words) {
				t.Errorf("explain does not say %q (%v):\n%s", words, err, text)
			}
		}
		for _, c := range all {
			w.wantTruth(c)
		}
		// A packet of no Service that leaves again was handled where it arrived.
		other := w.explain(w.Host("client").Addr4.String(), netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortTCP).String())
		if other.Reason != "not_service" || other.Device != "eth0" || len(other.EarlierPrograms) > 0 {
			t.Errorf("for a packet to a pod explain says %+v, want no Service", other)
		}
		// The same tuple again, when the connection has ended.
		over := all[0]
		w.eventually("the connection has ended", func() bool {
			return !slices.ContainsFunc(w.flows(), func(f conntrack.Flow) bool { return f.Client == over.from && f.State != "closed" })
		})
		if a := w.explain(over.from.String(), over.to.String()+"/tcp"); a.Reason != "new" || a.FlowState != "" {
			t.Errorf("after a connection with the same tuple has ended, explain says %+v, want a new flow", a)
		}
	})
}

// settle flushes ended connections, after the last packet of each.
func (w *world) settle() {
	w.t.Helper()
	w.eventually("all flows but one have ended", func() bool {
		return len(slices.DeleteFunc(w.flows(), func(f conntrack.Flow) bool { return f.State == "closed" })) == 1
	})
	_, err := w.agent.CLI("flow", "flush", "--service", "default/sticky")
	w.must(err)
}

func (w *world) podAt(a netip.Addr) string {
	for _, n := range w.Nodes() {
		for _, p := range n.Pods() {
			if a == p.Addr4 || a == p.Addr6 {
				return p.Name
			}
		}
	}
	return a.String()
}

func (c *explained) wantAnswer(t *testing.T) {
	t.Helper()
	a := c.answer
	service := ""
	if c.service != "" {
		service = "default/" + c.service
	}
	if a.Reason != c.reason || a.Service != service || strings.Join(a.Rules, " ") != c.rules || a.Device != "eth0" || a.FlowState != "" {
		t.Errorf("%s, %s to %s: explain says %+v, want %s, %q, rules %s", c.name, c.network, c.to, a, c.reason, service, c.rules)
	}
	if want := map[string]string{"kept": "kept", "to be kept": "new"}[c.name]; a.Affinity != want {
		t.Errorf("%s: session affinity is %q, want %q", c.name, a.Affinity, want)
	}
}

// wantTruth sends the packet that was explained.
func (w *world) wantTruth(c *explained) {
	w.t.Helper()
	count := func() uint64 { return w.status().Edge.Counters[c.reason] }
	before := count()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	type result struct {
		answer lab.Answer
		err    error
	}
	results := make(chan result, 1)
	go func() {
		conn, err := w.Host("client").DialWith(ctx, lab.DialOptions{Local: c.from}, c.network, c.to.String())
		if err != nil {
			results <- result{err: err}
			return
		}
		defer conn.Close()
		answer, err := lab.Ask(ctx, conn, "hello")
		results <- result{answer, err}
	}()
	if c.answer.Verdict == "drop" {
		w.eventually(c.name+" is dropped", func() bool { return count() > before })
		cancel()
		if r := <-results; r.err == nil || errors.Is(r.err, syscall.ECONNREFUSED) {
			w.t.Errorf("%s to %s was explained as dropped, but the client has: %v, %v", c.name, c.to, r.answer, r.err)
		}
		return
	}
	r := <-results
	switch c.answer.Verdict {
	case "balance":
		becomes := c.answer.Rewritten
		if r.err != nil || r.answer.Pod != w.podAt(becomes.Destination.Addr()) || r.answer.Peer != becomes.Source {
			w.t.Errorf("%s to %s was explained as %s, but the client has: %v, %v", c.name, c.to, becomes, r.answer, r.err)
		}
	case "reject":
		if !errors.Is(r.err, syscall.ECONNREFUSED) || count() != before+1 {
			w.t.Errorf("%s to %s was explained as refused, but the client has: %v, %v", c.name, c.to, r.answer, r.err)
		}
	default: // the node's stack refuses
		if !errors.Is(r.err, syscall.ECONNREFUSED) {
			w.t.Errorf("%s to %s was explained as passed, but the client has: %v, %v", c.name, c.to, r.answer, r.err)
		}
	}
}

// What explain says of a connect() is what happens to a pod and to the node. It leaves no trace.
func TestExplainSocket(t *testing.T) {
	w := borrowWorld(t, "--edge-mode=tc")
	w.services()
	own, slices := w.everywhere("own", 7, "b1")
	own.Spec.LoadBalancerSourceRanges = []string{netip.PrefixFrom(w.Host("node-a").Addr4, 32).String()}
	w.apply("own", objects(own, slices)...)
	w.must(w.asksFrom("a2", w.address("ClusterIP", 6, 0)))
	before := w.state()
	type question struct {
		host, network string
		to            netip.AddrPort
		verdict       string
		rules         string
	}
	var answers []explanation
	questions := []question{
		{"a2", "tcp", w.address("ClusterIP", 5, 0), "balance", "R16"},
		{"node-a", "tcp", w.address("ClusterIP", 5, 1), "balance", "R16 R19"},
		{"a2", "tcp", w.address("ClusterIP", 6, 0), "balance", "R16 R27"},
		{"a2", "tcp", w.address("ClusterIP", 2, 1), "reject", "R16"},
		{"node-a", "tcp", w.address("NodePort", 2, 0), "reject", "R17 R18 R22"},
		{"a2", "tcp", netip.AddrPortFrom(w.address("ClusterIP", 5, 0).Addr(), 81), "reject", "R21"},
		{"a2", "udp", w.address("ClusterIP", 200, 0), "drop", "R21"},
		{"node-a", "tcp", w.address("ClusterIP", 200, 1), "drop", "R21"},
		{"a2", "udp", netip.AddrPortFrom(w.address("ClusterIP", 5, 0).Addr(), 81), "reject", "R21"},
		{"node-a", "tcp", w.address("LoadBalancer", 7, 0), "balance", "R17 R19 R25"},
		{"a2", "tcp", netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortTCP), "pass", ""},
	}
	for _, q := range questions {
		from := w.Host(q.host).Addr4
		if q.to.Addr().Is6() {
			from = w.Host(q.host).Addr6
		}
		a := w.explained("connect", from.String(), q.to.String()+"/"+q.network)
		if a.Verdict != q.verdict || strings.Join(a.Rules, " ") != q.rules || a.Hook != "connect" && (len(a.EarlierPrograms) == 0 || !strings.HasPrefix(a.EarlierPrograms[0], "connect")) {
			t.Errorf("%s to %s: explain says %+v, want %s by %s", q.host, q.to, a, q.verdict, q.rules)
		}
		answers = append(answers, a)
	}
	w.unchanged(before)
	if a := answers[2]; a.Affinity != "kept" {
		t.Errorf("session affinity is %q, want kept", a.Affinity)
	}
	for i, q := range questions {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		answer, err := w.Host(q.host).Request(ctx, q.network, q.to.String(), "hello")
		cancel()
		a := answers[i]
		switch {
		case q.verdict == "reject" && errors.Is(err, syscall.ECONNREFUSED), q.verdict == "drop" && errors.Is(err, syscall.EPERM),
			q.verdict == "pass" && err == nil && answer.Pod == "b1":
		case q.verdict == "balance" && err == nil && a.Rewritten != nil && answer.Pod == w.podAt(a.Rewritten.Destination.Addr()):
		default:
			t.Errorf("%s to %s was explained as %+v, but the result is %+v, %v", q.host, q.to, a, answer, err)
		}
	}
}

func (w *world) asksFrom(host string, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := w.Host(host).Request(ctx, "tcp", to.String(), "hello")
	return err
}

// Invalid requests are refused with the reason.
func TestExplainBadQuestions(t *testing.T) {
	w := borrowWorld(t, "--edge-mode=tc")
	w.eventually("no device of pods is served, as it may be after another test", func() bool { return len(w.status().Edge.Devices) == 1 })
	node, client := w.Host("node-a").Addr4.String(), w.Host("client").Addr4.String()
	for _, c := range []struct{ args, words string }{
		{"packet nonsense 192.0.2.1:80", "nonsense: not ADDRESS or ADDRESS:PORT"},
		{"packet " + client + " 192.0.2.1", "192.0.2.1: not ADDRESS:PORT"},
		{"packet " + client + " 192.0.2.1:0", "not ADDRESS:PORT"},
		{"packet " + client + " 192.0.2.1:80/dccp", `"dccp" is neither tcp, udp, sctp nor icmp`},
		{"packet " + client + " 192.0.2.1:80/icmp", "not ADDRESS/icmp"},
		{"packet " + client + " [2001:db8::1]:80", "different families"},
		{"packet 0.0.0.0 192.0.2.1:80", "not a unicast address"},
		{"packet " + node + " 192.0.2.1:80", "explain connect"},
		{"packet " + w.Host("a1").Addr4.String() + " 192.0.2.1:80", "where clients are not served: add the device to the agent's --devices, use `beeline explain connect` for a pod of this node, or set --device to the device that receives its packets, one of eth0"},
		{"packet " + client + " 192.0.2.1:80 --device eth7", "--device eth7: clients are not served at this device; choose from eth0"},
		{"connect " + client + " 192.0.2.1:80", "is not an address of this node or of a pod on it"},
		{"connect " + node + " 192.0.2.1/icmp", "ICMP has no connect()"},
		{"connect " + node + " 192.0.2.1:80 --device eth0", "unknown flag: --device"},
		{"packet " + client, "accepts 2 arg(s)"},
		{"packet " + client + " 192.0.2.1:80 --agent-socket /run/beeline/agent.sock", "--agent-socket has no effect with --pins: leave one of them out"},
		{"packet " + client + " 192.0.2.1:80/DCCP", `"DCCP" is neither tcp, udp, sctp nor icmp`},
		{"packet " + client + " 192.0.2.1:80000/TCP", "not ADDRESS:PORT"},
	} {
		_, err := w.agent.CLI(append([]string{"explain"}, strings.Fields(c.args)...)...)
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok || exit.ExitCode() != 2 || !strings.Contains(string(exit.Stderr), c.words) {
			t.Errorf("explain %s: %v, want exit code 2 and %q", c.args, err, c.words)
			if ok {
				t.Logf("it says %s", exit.Stderr)
			}
		}
	}
}

// state is all that an explanation must not change.
type state struct {
	flows    map[bpf.Tuple]bpf.ConntrackEntry
	affinity map[bpf.AffinityKey]bpf.AffinityEntry
	counters map[string]uint64
	services map[uint32]bpf.ServiceCounters
	sockets  bpf.SocketCounters
}

func (w *world) state() (s state) {
	w.t.Helper()
	flows, err := conntrack.Open(w.agent.BPFFS())
	w.must(err)
	s.flows = map[bpf.Tuple]bpf.ConntrackEntry{}
	w.must(flows.Walk(func(key conntrack.Tuple, e *conntrack.Entry) { s.flows[key] = *e }))
	tables, err := bpf.OpenTables(w.agent.BPFFS())
	w.must(err)
	s.affinity = map[bpf.AffinityKey]bpf.AffinityEntry{}
	w.must(tables.Affinity.Walk(func(e *bpf.AffinityEntry) bool { s.affinity[e.Key] = *e; return true }))
	s.counters, err = bpf.ReadEdgeCounters(w.agent.BPFFS())
	w.must(err)
	delete(s.counters, "not_service") // traffic between neighbours
	s.services, err = bpf.ReadServiceCounters(w.agent.BPFFS())
	w.must(err)
	sockets, err := bpf.ReadCounters(w.agent.BPFFS())
	w.must(err)
	s.sockets = *sockets
	return s
}

// unchanged checks that the state is the same.
func (w *world) unchanged(before state) {
	w.t.Helper()
	if after := w.state(); !reflect.DeepEqual(before, after) {
		w.t.Errorf("explain has left a trace; before:\n%+v\nafter:\n%+v", before, after)
	}
}
