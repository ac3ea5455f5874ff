// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// patience bounds all waiting. No result depends on it: what works takes milliseconds.
const patience = time.Minute

// A world is a lab with a server in each pod, an agent on each node, and the rules of kubeRules on both.
type world struct {
	*lab.Lab
	t      *testing.T
	folder *node.Folder
	agents map[string]*node.Agent // by node
}

// kubeRules drop what the kernel's conntrack finds invalid, as kube-proxy's rules do, and count it.
const kubeRules = `table inet kube {
	chain forward {
		type filter hook forward priority 0; policy accept;
		ct state invalid counter drop
	}
}`

// newWorld makes a lab. The agents are not started.
func newWorld(t *testing.T, shape lab.Shape, flags ...string) *world {
	t.Helper()
	t.Parallel()
	w := &world{Lab: lab.NewOf(t, shape), t: t, folder: &node.Folder{Path: t.TempDir()}, agents: map[string]*node.Agent{}}
	w.must(w.StartServers())
	w.must(w.folder.Put("cluster", node.Cluster(w.Lab)...))
	for _, name := range []string{"node-a", "node-b"} {
		w.rules(name, kubeRules)
		w.agentOn(name, flags...)
	}
	return w
}

// startWorld makes a lab with running agents whose pod shortcut has all pods.
func startWorld(t *testing.T, shape lab.Shape, flags ...string) *world {
	t.Helper()
	w := newWorld(t, shape, append([]string{"--pod-devices=auto"}, flags...)...)
	for _, a := range w.agents {
		w.must(a.Start())
	}
	w.awaitAllPods()
	return w
}

// awaitAllPods waits until both nodes' shortcuts have all pods.
func (w *world) awaitAllPods() {
	w.t.Helper()
	w.meetPods()
	w.awaitPods("node-a", "a1", "a2", "a3")
	w.awaitPods("node-b", "b1", "b2", "b3")
}

// meetPods has each node send to its pods, as the kubelet does: it learns by this where they are behind a bridge.
func (w *world) meetPods() {
	w.t.Helper()
	for _, pod := range w.Pods() {
		for _, addr := range addresses(pod, 0) {
			if w.Shape.Pods == lab.PodsBridge {
				w.pings(pod.Node.Name, addr.Addr())
			}
		}
	}
}

// counters are the packets of each node's shortcut by their path.
func (w *world) counters() map[string]map[string]uint64 {
	w.t.Helper()
	all := map[string]map[string]uint64{}
	for host := range w.agents {
		all[host] = w.pods(host).Packets
	}
	return all
}

func (w *world) agentOn(host string, flags ...string) {
	w.t.Helper()
	a := &node.Agent{Host: w.Host(host), Program: program, Manifests: w.folder.Path, MaxFlows: 16384, Flags: flags, Log: &node.Log{}}
	w.agents[host] = a
	w.t.Cleanup(func() {
		if err := a.Kill(); err != nil {
			w.t.Errorf("the agent of %s ended before it was killed: %v", host, err)
		}
		if w.t.Failed() {
			w.t.Logf("the agent of %s printed:\n%s", host, a.Log)
		}
	})
}

func (w *world) hosts(names ...string) (all []*lab.Host) {
	w.t.Helper()
	for _, name := range names {
		all = append(all, w.Host(name))
	}
	return all
}

// in is the world for a subtest.
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

// run runs a command on a host and returns what it prints.
func (w *world) run(host string, argv ...string) string {
	w.t.Helper()
	return w.feed(host, "", argv...)
}

// feed is run with a text on standard input.
func (w *world) feed(host, text string, argv ...string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := w.Host(host).Command(ctx, argv...)
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: %s: %v: %s", host, strings.Join(argv, " "), err, out)
	}
	return string(out)
}

// rules adds nftables rules to a host.
func (w *world) rules(host, rules string) {
	w.t.Helper()
	w.run(host, "nft", rules)
}

// invalid returns how many packets the rules of a host have dropped.
func (w *world) invalid(host string) (dropped uint64) {
	w.t.Helper()
	var list struct {
		Nftables []struct {
			Rule *struct {
				Expr []struct {
					Counter *struct{ Packets uint64 }
				}
			}
		}
	}
	w.must(json.Unmarshal([]byte(w.run(host, "nft", "-j", "list", "table", "inet", "kube")), &list))
	for _, o := range list.Nftables {
		if o.Rule == nil {
			continue
		}
		for _, e := range o.Rule.Expr {
			if e.Counter != nil {
				dropped += e.Counter.Packets
			}
		}
	}
	return dropped
}

// pods is the state of a node's pod shortcut.
func (w *world) pods(host string) *api.Pods {
	w.t.Helper()
	s, err := w.agents[host].Status()
	w.must(err)
	if s.Pods == nil {
		w.t.Fatalf("%s: the status has no pod shortcut", host)
	}
	return s.Pods
}

// eventually waits until ok returns true.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	for begun := time.Now(); ; {
		asked := time.Now()
		if ok() {
			return
		}
		if time.Since(begun) > patience {
			w.t.Fatalf("waited %v in vain for this: %s\n%s", patience, what, node.Says(slices.Collect(maps.Values(w.agents))...))
		}
		time.Sleep(node.PollPause(begun, asked))
	}
}

// awaitPods waits until a node's shortcut has pods, both addresses of each.
func (w *world) awaitPods(host string, names ...string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%s has the pods %v", host, names), func() bool {
		have := map[netip.Addr]bool{}
		for _, d := range w.pods(host).Devices {
			for _, a := range d.PodAddresses {
				have[a] = d.Shortcut
			}
		}
		for _, name := range names {
			if h := w.Host(name); !have[h.Addr4] || !have[h.Addr6] {
				return false
			}
		}
		return true
	})
}

// apply writes objects and waits until all agents have them.
func (w *world) apply(name string, objects ...runtime.Object) {
	w.t.Helper()
	w.must(w.folder.Put(name, objects...))
	for _, a := range w.agents {
		w.must(w.folder.Await(a))
	}
}

// addresses returns a host's addresses in both families, with a port.
func addresses(h *lab.Host, port uint16) []netip.AddrPort {
	return []netip.AddrPort{netip.AddrPortFrom(h.Addr4, port), netip.AddrPortFrom(h.Addr6, port)}
}

// ask has a host send one request.
func (w *world) ask(host, network string, to netip.AddrPort) (lab.Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience/4)
	defer cancel()
	return w.Host(host).Request(ctx, network, to.String(), "hello")
}
