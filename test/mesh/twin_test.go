// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/shortcut/mesh"
	"beeline.io/beeline/internal/shortcut/mesh/hoststack"
	"beeline.io/beeline/test/node"
)

// rulesAsIstio are those of istio-iptables for both families, with an excluded port in each direction.
const rulesAsIstio = `table inet istio {
	chain output {
		type nat hook output priority -100; policy accept;
		tcp dport 7199 return
		oifname "lo" ip saddr 127.0.0.6 return
		oifname "lo" ip6 saddr ::6 return
		oifname "lo" ip daddr != 127.0.0.1 tcp dport != 15008 meta skuid 1337 redirect to :15006
		oifname "lo" ip6 daddr != ::1 tcp dport != 15008 meta skuid 1337 redirect to :15006
		oifname "lo" meta skuid != 1337 return
		meta skuid 1337 return
		ip daddr 127.0.0.1 return
		ip6 daddr ::1 return
		meta l4proto tcp redirect to :15001
	}
	chain prerouting {
		type nat hook prerouting priority -100; policy accept;
		tcp dport { 15008, 15020, 15021, 15090, 7199 } return
		meta l4proto tcp redirect to :15006
	}
}`

// The ports of the twins' servers: one speaks first at twinFirst, and HTTP at twinHTTP; nothing listens at twinClosed.
// Connections of scenarios beside others are to twinSlow, so that those find their own lines in the proxy's log.
const (
	twinPort, twinFirst, twinClosed = 7100, 7101, 7102
	twinHTTP, twinSlow              = 7103, 7104
	twinExcluded                    = 7199
	twinTunnel                      = 15008 // of Istio's proxies
)

// A twinMode is what carries messages between the application and the proxy of the pod with the shortcut.
type twinMode struct {
	name           string
	sockmap, rings bool
	// short is the proxy with -short; without a name it is all.
	short string
}

var twinModes = []twinMode{
	{name: "hook"},
	{name: "hook and sockmap", sockmap: true},
	{name: "hook and rings", rings: true, short: envoy.name},
	{name: "all three", sockmap: true, rings: true, short: haproxy.name},
}

func (m twinMode) flags() (all []string) {
	if m.sockmap {
		all = append(all, "--mesh-sockmap")
	}
	if m.rings {
		all = append(all, "--mesh-hoststack=on")
	}
	return all
}

func (m twinMode) proxies() []proxy {
	all := []proxy{envoy, haproxy, nginx}
	if testing.Short() && m.short != "" {
		all = slices.DeleteFunc(all, func(p proxy) bool { return p.name != m.short })
	}
	return all
}

// sizes are those of what is sent and comes back.
func (m twinMode) sizes() []int {
	switch {
	case !testing.Short():
		return []int{1, 1 << 10, 64 << 10, 1 << 20, 20 << 20}
	case m.short != "":
		return []int{1, 64 << 10}
	default:
		return []int{1, 64 << 10, 1 << 20}
	}
}

// TestTwins: pod a1 has the sidecar shortcut, pod a2 the rules of istio-iptables. With the same proxy and the same
// programs both get the same results, byte for byte and error for error.
func TestTwins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent.Flags = w.twinFlags()
	w.byIstiosRules("a2")
	for n, pod := range []string{"a1", "a2", "b1"} {
		service, slices := node.Service("twin-"+pod, uint8(41+n)), node.Slices("twin-"+pod, w.Host(pod))
		node.SetPorts(service, slices, node.Port{Name: "tcp", Protocol: "TCP", Port: 80, Target: twinPort})
		w.must(w.folder.Put("twin-"+pod, service, slices[0], slices[1]))
	}
	w.startAgent()
	for _, mode := range twinModes {
		t.Run(mode.name, func(t *testing.T) {
			w := w.in(t)
			w.must(w.agent.Kill())
			w.agent.Flags = append(w.twinFlags(), mode.flags()...)
			w.startAgent()
			if mode.sockmap {
				w.needSockmap()
			}
			w.startTwinApplications(mode)
			for _, p := range mode.proxies() {
				t.Run(p.name, func(t *testing.T) { w.in(t).twins(p, mode) })
			}
		})
	}
}

// twinFlags are those of the agent in all modes.
func (w *world) twinFlags() []string {
	return []string{"--edge-mode=off", "--mesh-cgroups=" + w.Host("a1").Cgroup,
		fmt.Sprintf("--mesh-exclude-outbound-ports=%d", twinExcluded), fmt.Sprintf("--mesh-exclude-inbound-ports=%d", twinExcluded)}
}

// byIstiosRules gives a pod the rules of istio-iptables, and the address that these add.
func (w *world) byIstiosRules(pod string) {
	w.t.Helper()
	w.run(pod, "nft", rulesAsIstio)
	w.run(pod, "ip", "-6", "address", "add", "::6/128", "dev", "lo", "nodad")
}

// ringsAfter has connections ask for rings at once, so that those with few operations use them, too.
const ringsAfter = "BEELINE_HOSTSTACK_AFTER=1"

// startTwinApplications starts the servers of both pods and of their peer. With rings the sockets of both pods are
// those of the same program, in one of them with the library.
func (w *world) startTwinApplications(mode twinMode) {
	w.t.Helper()
	w.applications = map[string]applications{}
	if mode.rings {
		w.applications["a1"] = w.startSockets(w.Host("a1"), preloadedBy(libraryOf(w.t), ringsAfter)...)
		w.applications["a2"] = w.startSockets(w.Host("a2"))
	}
	for _, pod := range []string{"a1", "a2", "b1"} {
		w.twinServer(w.Host(pod))
	}
}

// twins compares the pods with one kind of proxy. By netfilter's REDIRECT nginx never learns the destination, and
// haproxy not that of IPv6 connections: these have no twin, and have to work.
func (w *world) twins(p proxy, mode twinMode) {
	w.t.Helper()
	all := w.startTwins(p, mode)
	w.eventually("the agent has found the proxy", func() bool {
		pods := w.meshStatus().Pods
		return len(pods) == 1 && pods[0].ProxyListeners > 0
	})
	before := w.counts()
	for family := range 2 {
		twins := all
		if family == 1 && !p.outbound6 {
			twins = all[:1]
		}
		w.compareAll(twins, fmt.Sprintf("%s, IPv%d", p.name, 4+2*family), twinScenarios(w, p, family, mode))
	}
	if mode.rings {
		w.proveRings(all[0])
	}
	w.restartsUnderLoad(all, mode)
	w.proveSockmap(all[0], mode, before)
}

func (w *world) startTwins(p proxy, mode twinMode) (all []*sidecar) {
	w.t.Helper()
	shortcut := p
	if mode.rings {
		shortcut = p.withLibrary(preloadedBy(libraryOf(w.t), ringsAfter))
	}
	all = append(all, w.startProxy(shortcut, "a1"))
	if p.name != nginx.name {
		all = append(all, w.startProxy(p, "a2"))
	}
	return all
}

// compareAll runs scenarios with both twins at once, and those that wait beside the others.
func (w *world) compareAll(twins []*sidecar, name string, scenarios []twinScenario) {
	var beside sync.WaitGroup
	for _, s := range scenarios {
		if s.slow {
			beside.Go(func() { w.compare(twins, name, s) })
		}
	}
	for _, s := range scenarios {
		if !s.slow {
			w.compare(twins, name, s)
		}
	}
	beside.Wait()
}

func (w *world) compare(twins []*sidecar, name string, s twinScenario) {
	got, want := s.both(twins)
	// Whether a proxy reads before it closes is a race, with and without the shortcut.
	for n := 0; s.may && got != want && n < 20; n++ {
		got, want = s.both(twins)
	}
	if got != want {
		w.t.Errorf("%s, %s: %s; by Istio's rules %s", name, s.name, got, want)
	} else if !s.may && got != "ok" {
		w.t.Errorf("%s, %s: %s", name, s.name, got)
	}
}

// proveSockmap: messages have skipped TCP in those modes that have it. What is on rings is not sent.
func (w *world) proveSockmap(s *sidecar, mode twinMode, before *mesh.Counters) {
	w.t.Helper()
	now := w.counts()
	skipped, joined := now.Skipped-before.Skipped, now.Joined-before.Joined
	if mode.sockmap != (joined > 0) || skipped > 0 && !mode.sockmap || skipped == 0 && mode.sockmap && !mode.rings {
		w.t.Errorf("%s: %d sockets joined the sockmap, %d messages skipped TCP", s.name, joined, skipped)
	}
}

// proveRings: the proxy and the application exchange messages of open connections by rings.
func (w *world) proveRings(s *sidecar) {
	w.t.Helper()
	r := &restart{w: w, s: s}
	for _, way := range w.twinWays(s.proxy, 0) {
		r.open(way).Close()
	}
	for name, pid := range map[string]int{s.name: s.cmd.Process.Pid, "the application": w.applications["a1"].(*remoteSockets).cmd.Process.Pid} {
		w.eventually(name+" has sent and received by rings", func() bool {
			c := w.ringsOf(pid)
			return c != nil && c.Attached > 0 && c.Sent > readsUntilKnown/2*restartText && c.Received > readsUntilKnown/2*restartText
		})
	}
}

// ringsOf is what the agent has counted of a program with the library.
func (w *world) ringsOf(pid int) *hoststack.Counters {
	w.t.Helper()
	var r hoststack.Report
	w.must(api.NewClient(w.agent.Socket()).Get(context.Background(), api.MeshSessionsPath, &r))
	for _, p := range r.Programs {
		if slices.Contains(p.PIDs, pid) {
			return p.Counters
		}
	}
	return nil
}
