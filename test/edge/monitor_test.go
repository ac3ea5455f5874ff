// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/lab"
)

// watcher is a running `beeline monitor`.
type watcher struct {
	*lab.Cmd
	mu   sync.Mutex
	seen []api.Event
	lost uint64
}

// watch starts one on node-a, and returns when it receives events.
func (w *world) watch(args ...string) *watcher {
	w.t.Helper()
	cmd := w.agent.Host.Command(context.Background(), append([]string{program, "monitor", "-o", "json"}, args...)...)
	out, err := cmd.StdoutPipe()
	w.must(err)
	notes, err := cmd.StderrPipe()
	w.must(err)
	w.must(cmd.Start())
	m := &watcher{Cmd: cmd}
	ended := make(chan struct{})
	w.t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
		cmd.Wait()
	})
	first, err := bufio.NewReader(notes).ReadString('\n')
	if first != "watching\n" {
		close(ended)
		w.t.Fatalf("monitor says %q (%v)", first, err)
	}
	go func() {
		defer close(ended)
		for lines := json.NewDecoder(out); ; {
			var n api.EventMessage
			if lines.Decode(&n) != nil {
				return
			}
			m.mu.Lock()
			m.lost += n.LostEvents
			if n.Event != nil {
				m.seen = append(m.seen, *n.Event)
			}
			m.mu.Unlock()
		}
	}()
	return m
}

// of returns the events of a client's packets.
func (m *watcher) of(client string) (all []api.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.seen {
		if e.Client.String() == client {
			all = append(all, e)
		}
	}
	return all
}

// told returns how many events it received, and how many were lost.
func (m *watcher) told() (events, lost uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return uint64(len(m.seen)), m.lost
}

// datagram sends a datagram of the client, and returns the socket.
func (w *world) datagram(to netip.AddrPort) net.Conn {
	w.t.Helper()
	conn := w.open("udp", to)
	_, err := conn.Write([]byte("hello"))
	w.must(err)
	return conn
}

// clientPort returns a port that no test of this world has used: those before may have left it in TIME_WAIT.
// The kernel chooses ports from 32768 on.
func (w *world) clientPort() uint16 {
	w.ports++
	return 20000 + w.ports
}

// sends has the client send a datagram, or begin a connection, and returns its source.
func (w *world) sends(network string, to netip.AddrPort) string {
	w.t.Helper()
	if network == "udp" {
		return w.datagram(to).LocalAddr().String()
	}
	from := addresses(w.Host("client"), w.clientPort())[map[bool]int{true: 1}[to.Addr().Is6()]]
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := w.Host("client").DialWith(ctx, lab.DialOptions{Local: from}, network, to.String())
		if errors.Is(err, unix.EADDRINUSE) {
			w.t.Errorf("connect from %s: %v", from, err)
		} else if err == nil {
			conn.Close()
		}
	}()
	w.t.Cleanup(func() {
		cancel()
		<-ended
	})
	return from.String()
}

// watched reports whether the programs emit events.
func (w *world) watched() bool {
	w.t.Helper()
	m, err := ebpf.LoadPinnedMap(bpf.TablePath(w.agent.BPFFS(), bpf.EdgeTCMapEdgeWatched), nil)
	w.must(err)
	defer m.Close()
	var on uint32
	w.must(m.Lookup(uint32(0), &on))
	return on != 0
}

// services are those of the tests below: web has a1 and b1, here a1, there b1 with traffic policy Local, none
// nothing, and admitted admits no client of the lab.
func (w *world) services() {
	w.t.Helper()
	w.lead()
	w.apply("web", objects(w.everywhere("web", 1, "a1", "b1"))...)
	w.apply("none", objects(w.everywhere("none", 2))...)
	there, all := w.everywhere("there", 3, "b1")
	there.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	w.apply("there", objects(there, all)...)
	admitted, all := w.everywhere("admitted", 4, "b1")
	admitted.Spec.LoadBalancerSourceRanges = clientRanges[:]
	w.apply("admitted", objects(admitted, all)...)
	w.apply("here", objects(w.everywhere("here", 5, "a1"))...)
	sticky, all := w.everywhere("sticky", 6, "a1", "b1")
	sticky.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	w.apply("sticky", objects(sticky, all)...)
}

// A watcher sees each new flow, refusal and drop with its reason, Service, tuple and entry, and only what it
// has asked for. When the last watcher ends, even if killed, the programs emit no events.
func TestMonitor(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorld(t, "--edge-mode="+mode)
		w.services()
		w.wantServed("udp", w.address("NodePort", 1, 0), "a1", "b1") // so that next hops are known
		w.wantServed("udp", w.address("NodePort", 1, 1), "a1", "b1")
		if w.watched() {
			t.Error("the programs emit events without a watcher")
		}
		all, drops := w.watch("--agent-socket", w.agent.Socket()), w.watch("--agent-socket", w.agent.Socket(), "--drops")
		one := w.watch("--agent-socket", w.agent.Socket(), "--service", "default/there", "--device", "eth0", "--reason", "drop_policy")
		for family := range 2 {
			for _, c := range []struct {
				network, kind string
				n             int
				service, want string
			}{
				{"udp", "NodePort", 5, "default/here", "new"},
				{"tcp", "ExternalIP", 4, "default/admitted", "new"},
				{"tcp", "NodePort", 2, "default/none", "rejected"},
				{"udp", "NodePort", 3, "default/there", "drop_policy"},
				{"tcp", "LoadBalancer", 4, "default/admitted", "drop_source"},
				{"udp", "ClusterIP", 200, "", "drop_no_service"},
			} {
				to := w.address(c.kind, c.n, family)
				client := w.sends(c.network, to)
				w.eventually("the packet to "+to.String()+" is seen", func() bool { return len(all.of(client)) > 0 })
				e := all.of(client)[0]
				if e.Reason != c.want || e.Service != c.service || e.Address != to || e.Hook != mode || e.Device != "eth0" ||
					e.Why != api.Reasons[c.want] || strings.ToLower(e.Protocol.String()) != c.network || e.Length < 20+8+5 {
					t.Errorf("a packet to %s of %s is reported as %+v, want %s by %s", to, c.service, e, c.want, mode)
				}
				if c.want == "new" && (e.Backend.Addr() != addresses(w.Host(map[int]string{4: "b1", 5: "a1"}[c.n]), 0)[family].Addr() ||
					e.SeenAs.IsValid() != (c.n == 4)) {
					t.Errorf("the new flow goes to %s as %s", e.Backend, e.SeenAs)
				}
				if c.want != "new" {
					w.eventually("the drop is seen with --drops", func() bool { return len(drops.of(client)) > 0 })
				} else if seen := drops.of(client); len(seen) > 0 {
					t.Errorf("--drops shows %+v", seen)
				}
				if c.want == "drop_policy" {
					w.eventually("the drop is seen with all filters", func() bool { return len(one.of(client)) > 0 })
				}
			}
		}
		if n, _ := one.told(); n != 2 {
			t.Errorf("with all filters %d events are shown, want 2", n)
		}
		w.must(all.Process.Kill())
		w.must(one.Process.Kill())
		client := w.datagram(w.address("NodePort", 3, 0)).LocalAddr().String()
		w.eventually("the remaining watcher gets events", func() bool { return len(drops.of(client)) > 0 })
		w.must(drops.Process.Kill())
		w.eventually("the programs emit no events", func() bool { return !w.watched() })
		again := w.watch("--agent-socket", w.agent.Socket())
		client = w.datagram(w.address("NodePort", 3, 0)).LocalAddr().String()
		w.eventually("a later watcher gets events", func() bool { return len(again.of(client)) > 0 })
		w.must(w.agent.Kill())
		w.must(w.agent.Start())
		if w.watched() {
			t.Error("the programs emit events that only the previous agent was asked for")
		}
		for _, c := range []struct{ args, words string }{
			{"--reason drop_polici", `did you mean "drop_policy"?`},
			{"--service a/b/c", "not of the form namespace/name or name"},
			{"--service ther", `--service ther: no such Service is in the tables, did you mean "there"?`},
			{"--service default/ther", `--service default/ther: no such Service is in the tables, did you mean "default/there"?`},
			{"--device nope", "--device nope: this node has no such device"},
			{"--device eth1", `did you mean "eth0"?`},
		} {
			w.wantWrong("monitor "+c.args, c.words)
		}
	})
}

// wantWrong checks that a command fails as wrong usage, with these words.
func (w *world) wantWrong(command, words string) {
	w.t.Helper()
	args := strings.Fields(command)
	run := w.agent.CLI
	if strings.Contains(command, "--pins") { // which excludes an agent's socket
		run = func(args ...string) (string, error) {
			out, err := w.agent.Host.Command(w.t.Context(), append([]string{program}, args...)...).Output()
			return string(out), err
		}
	}
	_, err := run(args...)
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.ExitCode() != 2 || !strings.Contains(string(exit.Stderr), words) {
		w.t.Errorf("%s: %v, want exit code 2 and %q", command, err, words)
		if ok {
			w.t.Logf("stderr: %s", exit.Stderr)
		}
	}
}

// Asking for flows of an unknown Service is an error, and not an empty list.
func TestFlowsOfNoService(t *testing.T) {
	w := borrowWorld(t, "--edge-mode=tc")
	w.apply("web", objects(w.public("b1"))...)
	conn := w.datagram(addresses(w.Host("node-a"), nodePort)[0])
	w.eventually("the flow is there", func() bool { return len(w.flows("--service", "default/web")) == 1 })
	if all := w.flows("--service", "web"); len(all) != 1 {
		t.Errorf("flows of the Service that alone has the name: %+v", all)
	}
	for _, command := range []string{"flow list", "flow flush"} {
		w.wantWrong(command+" --service wbe", `did you mean "web"?`)
		w.wantWrong(command+" --service default/nope", "--service default/nope: no such Service is in the tables")
		w.wantWrong(command+" --service default/wbe", `did you mean "default/web"?`)
	}
	if all := w.flows(); len(all) != 1 || all[0].Client.String() != conn.LocalAddr().String() {
		t.Errorf("after refused commands there are the flows %+v", all)
	}
	w.must(w.agent.Stop())
	for args, words := range map[string]string{"--device nope": "this node has no such device", "--service default/nope": "no such Service"} {
		w.wantWrong("monitor --pins "+w.agent.BPFFS()+" "+args, words)
	}
}

// Without an agent the pinned events are read. Events that come too fast are counted: received and lost ones
// are all that happened.
func TestMonitorWithoutAgent(t *testing.T) {
	w := borrowWorld(t, "--edge-mode=tc")
	w.services()
	if _, err := w.agent.CLI("monitor", "--pins"); exitCode(err) != 1 {
		t.Errorf("monitor --pins beside an agent: %v", err)
	}
	w.must(w.agent.Stop())
	m := w.watch("--pins", w.agent.BPFFS())
	conn := w.datagram(w.address("NodePort", 3, 0))
	w.eventually("the drop is reported", func() bool { return len(m.of(conn.LocalAddr().String())) > 0 })
	before := w.dropped()
	w.must(m.Process.Signal(syscall.SIGSTOP))
	const flood = 14000                               // more than the buffer holds
	w.eventually("so many are dropped", func() bool { // a busy kernel loses some before
		for range flood / 10 {
			_, err := conn.Write([]byte("hello"))
			w.must(err)
		}
		return w.dropped()-before >= flood
	})
	w.must(m.Process.Signal(syscall.SIGCONT))
	w.eventually("all events are received or counted as lost", func() bool {
		events, lost := m.told()
		return lost > 0 && events+lost == w.dropped()-before+1
	})
}

// dropped is the number of packets that a traffic policy has dropped, by the pinned counters.
func (w *world) dropped() uint64 {
	w.t.Helper()
	counters, err := bpf.ReadEdgeCounters(w.agent.BPFFS())
	w.must(err)
	return counters["drop_policy"]
}
