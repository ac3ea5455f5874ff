// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// patience bounds all waiting. No result depends on it: what works takes milliseconds.
const patience = 2 * time.Minute

// A world is a lab with a server in every pod, and agents that read one folder.
type world struct {
	*lab.Lab
	t      *testing.T
	folder *node.Folder
	agents []*node.Agent
}

// newWorld makes a lab of its own for a test, and an agent for each of the named nodes, which are not started
// yet.
func newWorld(t *testing.T, nodes ...string) *world {
	t.Helper()
	t.Parallel()
	return newWorldIn(t, lab.New(t), nodes...)
}

// newWorldIn is newWorld in an existing lab.
func newWorldIn(t *testing.T, l *lab.Lab, nodes ...string) *world {
	t.Helper()
	w := &world{Lab: l, t: t, folder: &node.Folder{Path: t.TempDir()}}
	if err := w.StartServers(); err != nil {
		t.Fatal(err)
	}
	for _, name := range nodes {
		w.agents = append(w.agents, w.newAgent(w.Host(name)))
	}
	w.write("cluster", node.Cluster(w.Lab)...)
	return w
}

// startWorld is newWorld with the agents started.
func startWorld(t *testing.T, nodes ...string) *world {
	t.Helper()
	w := newWorld(t, nodes...)
	w.start()
	return w
}

// newAgent prepares an agent whose log is shown if the test fails. It has no edge, so that tests see what the
// hooks do not serve.
func (w *world) newAgent(host *lab.Host) *node.Agent {
	log := &node.Log{}
	a := &node.Agent{Host: host, Program: program, Manifests: w.folder.Path, EdgeMode: "off", Log: log}
	w.t.Cleanup(func() {
		if err := a.Kill(); err != nil {
			w.t.Errorf("the agent on %s ended before it was killed: %v", host.Name, err)
		}
		if w.t.Failed() {
			w.t.Logf("the agent on %s printed:\n%s", host.Name, log)
		}
	})
	return a
}

func (w *world) start() {
	w.t.Helper()
	for _, a := range w.agents {
		w.must(a.Start())
	}
}

// agent is the agent of the first node.
func (w *world) agent() *node.Agent { return w.agents[0] }

// must ends the test if a step fails that is not under test.
func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// write writes objects to a file of the folder and does not wait.
func (w *world) write(name string, objects ...runtime.Object) {
	w.t.Helper()
	w.must(w.folder.Put(name, objects...))
}

// apply writes objects to a file of the folder and waits until the agents have them in their tables, and the prefilter
// is enabled again: the folder's revision is a ServiceCIDR.
func (w *world) apply(name string, objects ...runtime.Object) {
	w.t.Helper()
	w.write(name, objects...)
	w.await()
}

func (w *world) await() {
	w.t.Helper()
	w.must(w.folder.Await(w.agents...))
	for _, a := range w.agents {
		if a.EdgeMode == "off" { // else it takes a GC pass
			w.awaitPrefilter(a)
		}
	}
}

// remove removes a file of the folder and waits like apply.
func (w *world) remove(name string) {
	w.t.Helper()
	w.must(w.folder.Remove(name))
	w.await()
}

// eventually polls until a condition holds.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	for begun := time.Now(); ; {
		asked := time.Now()
		if ok() {
			return
		}
		if time.Since(begun) > patience {
			w.t.Fatalf("waited %v in vain for this: %s\n%s", patience, what, node.Says(w.agents...))
		}
		time.Sleep(node.PollPause(begun, asked))
	}
}

// hosts returns hosts by their names, separated by blanks.
func (w *world) hosts(names string) []*lab.Host {
	w.t.Helper()
	var all []*lab.Host
	for _, name := range strings.Fields(names) {
		h := w.Host(name)
		if h == nil {
			w.t.Fatalf("the lab has no host %q", name)
		}
		all = append(all, h)
	}
	return all
}

// web is a Service of ClusterIPs n with the named pods as ready endpoints, for a test to change.
func (w *world) web(name string, n uint8, pods string) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	w.t.Helper()
	return node.Service(name, n), node.Slices(name, w.hosts(pods)...)
}

// objects is a Service with its slices, as apply takes them.
func objects(s *corev1.Service, slices []*discoveryv1.EndpointSlice) []runtime.Object {
	all := []runtime.Object{s}
	for _, slice := range slices {
		all = append(all, slice)
	}
	return all
}

// endpoints calls change for each endpoint of a pod in all slices.
func endpoints(of []*discoveryv1.EndpointSlice, pod *lab.Host, change func(*discoveryv1.Endpoint)) {
	for _, slice := range of {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if slices.Contains([]string{pod.Addr4.String(), pod.Addr6.String()}, e.Addresses[0]) {
				change(e)
			}
		}
	}
}

type counters = bpf.SocketCounters

// counters are the counters of a node's hooks.
func (w *world) counters(a *node.Agent) counters {
	w.t.Helper()
	c, err := bpf.ReadCounters(a.BPFFS())
	w.must(err)
	return *c
}

// pins lists the pins of a node, as paths below its bpffs directory.
func (w *world) pins(a *node.Agent) []string {
	w.t.Helper()
	var all []string
	err := filepath.WalkDir(a.BPFFS(), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, _ := filepath.Rel(a.BPFFS(), path)
			all = append(all, name)
		}
		return err
	})
	if !errors.Is(err, os.ErrNotExist) {
		w.must(err)
	}
	return all
}

// ask makes one connection, sends the server a request, and closes.
func ask(from *lab.Host, f family, to netip.AddrPort) (lab.Answer, error) {
	return askFrom(netip.Addr{}, from, f, to)
}

// askFrom is ask with a socket bound to an address, if that is valid.
func askFrom(bound netip.Addr, from *lab.Host, f family, to netip.AddrPort) (lab.Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	options := lab.DialOptions{V4Mapped: f.mapped}
	if bound.IsValid() {
		options.Local = netip.AddrPortFrom(bound, 0)
	}
	conn, err := from.DialWith(ctx, options, "tcp", to.String())
	if err != nil {
		return lab.Answer{}, err
	}
	defer conn.Close()
	// Without TIME_WAIT: a load would exhaust the ports of its host.
	conn.(*net.TCPConn).SetLinger(0)
	return lab.Ask(ctx, conn, "")
}

// open makes a connection that stays open until the end of the test.
func (w *world) open(from *lab.Host, f family, to netip.AddrPort) net.Conn {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := from.DialWith(ctx, lab.DialOptions{V4Mapped: f.mapped}, "tcp", to.String())
	w.must(err)
	w.t.Cleanup(func() { conn.Close() })
	return conn
}

// served returns the name of the pod that answers on an open connection.
func (w *world) served(conn net.Conn) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	answer, err := lab.Ask(ctx, conn, "")
	w.must(err)
	return answer.Pod
}

// tries is how many connections find all of a set: one of three equal backends is missed with a probability of
// (2/3)^60 < 3e-11.
const tries = 60

// reach returns the result of connections to an address: the names of the pods that answered, sorted and joined
// by blanks, or connect's errno.
func reach(from *lab.Host, f family, to netip.AddrPort, bound netip.Addr) string {
	seen := map[string]bool{}
	for range tries {
		answer, err := askFrom(bound, from, f, to)
		if errno := syscall.Errno(0); errors.As(err, &errno) {
			return errnoName(errno)
		}
		if err != nil {
			return err.Error()
		}
		seen[answer.Pod] = true
	}
	var names []string
	for name := range seen {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}
