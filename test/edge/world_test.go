// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// patience bounds all waiting. No result depends on it: what works takes milliseconds.
const patience = 2 * time.Minute

const nodePort = 30080

// fewFlows is the size of the conntrack table on a small machine (the least default of --max-flows). Each
// `beeline status` counts the entries of the whole table, and tests call it often.
const fewFlows = 16384

// A world is a lab with a server in every pod, and an agent on node-a that reads one folder. Further agents
// read the same.
type world struct {
	*lab.Lab
	t      *testing.T
	folder *node.Folder
	agent  *node.Agent
	agents map[string]*node.Agent // by node, with node-a's
	ports  uint16                 // ports of the client that clientPort has returned
	forged int                    // datagrams with a forged source

	// Only if it is borrowed.

	kind   string                       // shape, agents and flags
	users  []string                     // the tests that have used it, with this one
	before map[string]map[string]uint64 // counters of the edge as the test began, by node
}

// newWorld makes a lab, in which XDP serves if the flags ask for it, and an agent that is not started yet. For
// tc it keeps the offloads: merged segments, and unfinished checksums.
func newWorld(t *testing.T, flags ...string) *world {
	t.Helper()
	return newWorldOf(t, lab.Shape{}, flags...)
}

// newWorldOf is newWorld for a lab of a certain shape.
func newWorldOf(t *testing.T, shape lab.Shape, flags ...string) *world {
	t.Helper()
	t.Parallel()
	w := &world{Lab: lab.NewOf(t, shape), t: t, folder: &node.Folder{Path: t.TempDir()}, agents: map[string]*node.Agent{}}
	w.must(w.StartServers())
	if slices.Contains(flags, "--edge-mode=xdp") {
		w.must(w.ReadyForXDP())
	}
	w.agent = w.agentOn("node-a", flags...)
	w.must(w.folder.Put("cluster", node.Cluster(w.Lab)...))
	return w
}

// agentOn is an agent on a node that reads the world's folder; it is not started yet.
func (w *world) agentOn(host string, flags ...string) *node.Agent {
	w.t.Helper()
	a := w.newAgent(host, flags...)
	w.agents[host] = a
	w.t.Cleanup(func() {
		if err := a.Kill(); err != nil {
			w.t.Errorf("the agent of %s ended before it was killed: %v", host, err)
		}
		if w.t.Failed() {
			w.t.Logf("the agent of %s printed:\n%s", host, a.Log)
		}
	})
	return a
}

// newAgent is agentOn without the end of the test.
func (w *world) newAgent(host string, flags ...string) *node.Agent {
	return &node.Agent{Host: w.Host(host), Program: program, Manifests: w.folder.Path, MaxFlows: fewFlows, Flags: slices.Clone(flags), Log: &node.Log{}}
}

func startWorld(t *testing.T, flags ...string) *world {
	t.Helper()
	w := newWorld(t, flags...)
	w.must(w.agent.Start())
	return w
}

func startWorldOf(t *testing.T, shape lab.Shape, flags ...string) *world {
	t.Helper()
	w := newWorldOf(t, shape, flags...)
	w.must(w.agent.Start())
	return w
}

// in is the same world in a subtest.
func (w *world) in(t *testing.T) *world {
	sub := *w
	sub.t = t
	return &sub
}

// must ends the test if a step fails that is not under test.
func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) status() *api.Status {
	w.t.Helper()
	s, err := w.statusOf(w.agent)
	w.must(err)
	return s
}

// apply writes objects to a file of the folder and waits until all running agents have them in their tables.
func (w *world) apply(name string, objects ...runtime.Object) {
	w.t.Helper()
	w.must(w.folder.Put(name, objects...))
	w.await()
}

// await waits until all running agents have the folder in their tables.
func (w *world) await() {
	w.t.Helper()
	for _, a := range w.agents {
		if a.Running() {
			w.must(w.folder.Await(a))
		}
	}
}

// public is a Service of type NodePort for TCP and UDP with the named pods as ready endpoints.
func (w *world) public(pods ...string) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	w.t.Helper()
	var hosts []*lab.Host
	for _, name := range pods {
		hosts = append(hosts, w.Host(name))
	}
	return node.Public("web", 1, nodePort, hosts...)
}

// objects is a Service with its slices, as apply takes them.
func objects(s *corev1.Service, slices []*discoveryv1.EndpointSlice) []runtime.Object {
	return node.Objects(s, slices)
}

// addresses returns a host's addresses in both families, with a port.
func addresses(h *lab.Host, port uint16) []netip.AddrPort {
	return []netip.AddrPort{netip.AddrPortFrom(h.Addr4, port), netip.AddrPortFrom(h.Addr6, port)}
}

// tries is how many flows find all of a set: one of two equal backends is missed with a probability of 2^-40.
const tries = 40

// triesFor is how many find all of so many equal backends: one is missed with a probability of less than 10^-9.
func triesFor(backends int) int { return max(1, backends-1) * tries }

// ask has the client send one request to an address.
func (w *world) ask(network string, to netip.AddrPort) (lab.Answer, error) {
	return w.askAs("client", network, to)
}

// askAs has a host send one request. The timeout is shorter for a datagram than for a connection, where the
// kernel retransmits.
func (w *world) askAs(host, network string, to netip.AddrPort) (lab.Answer, error) {
	limit := patience
	if network == "udp" {
		limit = patience / 6
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return w.Host(host).Request(ctx, network, to.String(), "hello")
}

// anyAddress lets a socket bind to one of clientRanges: for IPv6 a local route alone does not make an address
// the host's own.
func anyAddress(fd int) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1))
}

// askFrom is ask from one of the client's addresses.
func (w *world) askFrom(from netip.Addr, network string, to netip.AddrPort) (lab.Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	options := lab.DialOptions{Local: netip.AddrPortFrom(from, 0), Control: anyAddress}
	conn, err := w.Host("client").DialWith(ctx, options, network, to.String())
	if err != nil {
		return lab.Answer{}, err
	}
	defer conn.Close()
	return lab.Ask(ctx, conn, "hello")
}

// wantServed sends requests to an address until all that serve there have answered, and checks that these are
// the pods.
func (w *world) wantServed(network string, to netip.AddrPort, pods ...string) (answers []lab.Answer) {
	w.t.Helper()
	return w.wantServedAs("client", network, to, pods...)
}

// wantServedAs is wantServed for another host.
func (w *world) wantServedAs(host, network string, to netip.AddrPort, pods ...string) (answers []lab.Answer) {
	w.t.Helper()
	seen := map[string]bool{}
	for range triesFor(len(pods)) {
		answer, err := w.askAs(host, network, to)
		if err != nil {
			w.t.Errorf("%s to %s: %v; the edge counted %v", network, to, err, w.edgeCounters())
			return answers
		}
		seen[answer.Pod] = true
		answers = append(answers, answer)
	}
	if got := strings.Join(slices.Sorted(maps.Keys(seen)), " "); got != strings.Join(pods, " ") {
		w.t.Errorf("%s to %s is served by %s, want %s", network, to, got, strings.Join(pods, " "))
	}
	return answers
}
