// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"os"
	"testing"
	"time"

	"beeline.io/beeline/internal/shortcut/mesh"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

const idleTime, idleTimeShort = 10 * time.Minute, 5 * time.Second

// idlePods are where the modes are: on node-a the agent has --mesh-sockmap, on node-b it has not. The last one has the
// rules of istio-iptables.
var idlePods = []struct {
	name           string
	sockmap, rings bool
}{{"b1", false, false}, {"a3", true, false}, {"b3", false, true}, {"a1", true, true}, {"a2", false, false}}

// An idleProxy is a world with one kind of proxy, and connections that are idle.
type idleProxy struct {
	w        *world
	other    *node.Agent // of node-b
	sidecars map[string]*sidecar
	conns    []idleConn
}

type idleConn struct {
	pod, name string
	conn      tcpConn
}

// TestIdle: connections through the proxy work after ten minutes without a message, whatever carries them.
func TestIdle(t *testing.T) {
	t.Parallel()
	lasting := idleTime
	if testing.Short() {
		lasting = idleTimeShort
	}
	var all []*idleProxy
	for _, p := range []proxy{envoy, haproxy, nginx} {
		all = append(all, newIdleProxy(t, p))
	}
	time.Sleep(lasting)
	for _, i := range all {
		i.check()
	}
}

func newIdleProxy(t *testing.T, p proxy) *idleProxy {
	t.Helper()
	w := newWorld(t)
	w.agent.Flags = []string{"--edge-mode=off", "--mesh-sockmap", "--mesh-hoststack=on", "--mesh-cgroups=" + w.Host("a1").Cgroup + "," + w.Host("a3").Cgroup}
	w.startAgent()
	w.needSockmap()
	i := &idleProxy{w: w, sidecars: map[string]*sidecar{}}
	i.startOther()
	w.byIstiosRules("a2")
	w.applications = map[string]applications{}
	w.twinServer(w.Host("client"))
	library := preloadedBy(libraryOf(t), ringsAfter)
	for _, pod := range idlePods {
		with := p
		if pod.rings {
			with, w.applications[pod.name] = p.withLibrary(library), w.startSockets(w.Host(pod.name), library...)
		}
		i.sidecars[pod.name] = w.startProxy(with, pod.name)
		w.twinServer(w.Host(pod.name))
	}
	w.eventually("both agents have found the proxies", func() bool {
		return listenersOf(w, w.agent) && listenersOf(w, i.other)
	})
	for _, pod := range idlePods {
		i.open(p, pod.name)
	}
	return i
}

// startOther starts an agent on node-b, without --mesh-sockmap.
func (i *idleProxy) startOther() {
	w := i.w
	i.other = &node.Agent{Host: w.Host("node-b"), Program: program, Manifests: w.folder.Path, MaxFlows: 16384,
		Flags: []string{"--edge-mode=off", "--mesh-hoststack=on", "--mesh-cgroups=" + w.Host("b1").Cgroup + "," + w.Host("b3").Cgroup}}
	w.must(i.other.Start())
	w.t.Cleanup(func() {
		if err := i.other.Kill(); err != nil {
			w.t.Errorf("the agent of node-b ended before it was killed: %v", err)
		}
	})
}

// listenersOf reports whether an agent has found the proxies of its two pods.
func listenersOf(w *world, agent *node.Agent) bool {
	of := *w
	of.agent = agent
	pods := of.meshStatus().Pods
	return len(pods) == 2 && pods[0].ProxyListeners > 0 && pods[1].ProxyListeners > 0
}

// open opens the connections of a pod, and has both programs read often.
func (i *idleProxy) open(p proxy, pod string) {
	host, client := i.w.Host(pod), i.w.Host("client")
	byRules := pod == "a2"
	for family := range 2 {
		known := family == 0 || p.outbound6 // without it the proxy does not get the destination by the rules
		if p.outbound && known {
			i.connect(pod, fmt.Sprintf("from it, IPv%d", 4+2*family), host, addressesOf(client, twinPort)[family])
		}
		if !byRules || p.name != nginx.name && known {
			i.connect(pod, fmt.Sprintf("to it, IPv%d", 4+2*family), client, addressesOf(host, twinPort)[family])
		}
	}
}

func (i *idleProxy) connect(pod, name string, from *lab.Host, to netip.AddrPort) {
	i.w.t.Helper()
	conn, err := i.w.applicationsOf(from).connect(to)
	if err == nil {
		_, err = conn.Write([]byte("e"))
	}
	i.w.must(err)
	i.conns = append(i.conns, idleConn{pod, fmt.Sprintf("%s, pod %s, %s", i.sidecars[pod].name, pod, name), conn})
	i.talk(pod)
}

// talk has messages of all connections of a pod answered.
func (i *idleProxy) talk(pod string) {
	i.w.t.Helper()
	for _, c := range i.conns {
		if c.pod != pod {
			continue
		}
		c.conn.SetDeadline(time.Now().Add(patience / 2))
		for n := range readsUntilKnown {
			if err := request(c.conn); err != nil {
				i.w.t.Errorf("%s: message %d: %v", c.name, n, err)
				break
			}
		}
	}
}

// check has them answered again, and then end. Messages take the ways that they took before.
func (i *idleProxy) check() {
	w := i.w
	for _, pod := range idlePods {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", i.sidecars[pod.name].cmd.Process.Pid))
		w.must(err)
		if onRings := bytes.Contains(maps, []byte("/memfd:beeline-ring ")); onRings != pod.rings {
			w.t.Errorf("%s in %s has connections on rings: %v", i.sidecars[pod.name].name, pod.name, onRings)
		}
		before := w.counts()
		i.talk(pod.name)
		if skipped := w.counts().Skipped - before.Skipped; pod.sockmap && !pod.rings && skipped == 0 {
			w.t.Errorf("%s in %s: no message skipped TCP", i.sidecars[pod.name].name, pod.name)
		}
	}
	if other, err := mesh.ReadCounters(i.other.BPFFS()); err != nil || other.Joined > 0 {
		w.t.Errorf("without --mesh-sockmap sockets joined: %+v, %v", other, err)
	}
	for _, c := range i.conns {
		w.must(c.conn.CloseWrite())
		if rest, err := io.ReadAll(c.conn); err != nil || len(rest) > 0 {
			w.t.Errorf("%s: at the end %d octets, and %v", c.name, len(rest), err)
		}
	}
}
