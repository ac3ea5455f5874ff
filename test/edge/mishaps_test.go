// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

var (
	mishapCount = flag.Int("mishaps", 60, "how many mishaps TestMishaps draws")
	mishapSeed  = flag.Uint64("mishap-seed", 0, "seed of TestMishaps; 0: the time of day")
	mishapOnly  = flag.String("mishap", "", "the one mishap of TestMishaps; empty: all")
)

// How long the status may take to name what loses traffic, and how long nothing must be lost, or named.
const (
	mishapNotice = 75 * time.Second
	mishapQuiet  = 15 * time.Second
)

// A mishap is what happens to node-a, to its file, or to what is around it. Either do or change is set.
type mishap struct {
	name     string
	do, undo string // commands of a shell on host; $B4 and $B6 are addresses of a backend elsewhere, $C4 and $C6 the client's
	host     string // node-a if empty
	change   func(s *corev1.Service, slices []*discoveryv1.EndpointSlice)
	act      func(w *world) (undo func())
	// unseen is the row of docs/operate/life.md that says that Beeline cannot see it.
	unseen string
}

// elsewhere is the row about what happens on other machines and at the backend's own socket.
const elsewhere = "what fails beyond this node"

func eachEndpoint(slices []*discoveryv1.EndpointSlice, f func(e *discoveryv1.Endpoint)) {
	for _, slice := range slices {
		for i := range slice.Endpoints {
			f(&slice.Endpoints[i])
		}
	}
}

var mishaps = []mishap{
	{name: "slices with the label of another Service", change: func(_ *corev1.Service, slices []*discoveryv1.EndpointSlice) {
		for _, slice := range slices {
			slice.Labels[discoveryv1.LabelServiceName] = "wbe"
		}
	}},
	{name: "ports of slices with another name", change: func(_ *corev1.Service, slices []*discoveryv1.EndpointSlice) {
		for _, slice := range slices {
			slice.Ports[0].Name = new("htpp")
		}
	}},
	{name: "no endpoint is ready", change: func(_ *corev1.Service, slices []*discoveryv1.EndpointSlice) {
		eachEndpoint(slices, func(e *discoveryv1.Endpoint) { e.Conditions.Ready = new(false) })
	}},
	{name: "all weights are 0", change: func(_ *corev1.Service, slices []*discoveryv1.EndpointSlice) {
		for _, slice := range slices {
			slice.Annotations = map[string]string{service.AnnotationWeight: "0"}
		}
	}},
	{name: "slices without endpoints", change: func(_ *corev1.Service, slices []*discoveryv1.EndpointSlice) {
		for _, slice := range slices {
			slice.Endpoints = nil
		}
	}},
	{name: "one family has no slice", change: func(_ *corev1.Service, slices []*discoveryv1.EndpointSlice) {
		slices[1].Labels[discoveryv1.LabelServiceName] = "nothing"
	}},
	{name: "a target port where nothing listens", unseen: elsewhere, change: func(_ *corev1.Service, slices []*discoveryv1.EndpointSlice) {
		for _, slice := range slices {
			slice.Ports[0].Port = new(int32(4))
		}
	}},
	{name: "an endpoint with an address of nobody", unseen: elsewhere, change: func(_ *corev1.Service, slices []*discoveryv1.EndpointSlice) {
		for _, slice := range slices {
			e := slice.Endpoints[0]
			addr := netip.MustParseAddr(e.Addresses[0])
			b := addr.AsSlice()
			b[len(b)-1] = 222
			addr, _ = netip.AddrFromSlice(b)
			e.Addresses = []string{addr.String()}
			slice.Endpoints = append(slice.Endpoints, e)
		}
	}},
	{name: "source ranges without the client", change: func(s *corev1.Service, _ []*discoveryv1.EndpointSlice) {
		s.Spec.LoadBalancerSourceRanges = []string{"203.0.113.0/28", "2001:db8:ffff::/64"}
	}},
	{name: "policy Local without a local endpoint", change: func(s *corev1.Service, slices []*discoveryv1.EndpointSlice) {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		eachEndpoint(slices, func(e *discoveryv1.Endpoint) { e.NodeName = new("node-b") })
	}},
	{name: "an annotation that does not exist", change: func(s *corev1.Service, _ []*discoveryv1.EndpointSlice) {
		s.Annotations = map[string]string{"beeline.io/algoritm": "maglev"}
	}},
	{name: "DSR to a backend whose node does not accept it", unseen: elsewhere, change: func(s *corev1.Service, _ []*discoveryv1.EndpointSlice) {
		s.Annotations = map[string]string{service.AnnotationDSR: "geneve"}
	}},
	{name: "another Service with the same addresses", act: func(w *world) func() {
		s, slices := w.everywhere("aaa", 1, "b1")
		eachEndpoint(slices, func(e *discoveryv1.Endpoint) { e.Conditions.Ready = new(false) })
		w.must(w.folder.Put("aaa", objects(s, slices)...))
		return func() { w.must(w.folder.Remove("aaa")) }
	}},
	{name: "a file that is no YAML", act: func(w *world) func() {
		w.must(w.folder.Write("bad", []byte("a: [b\n")))
		return func() { w.must(w.folder.Remove("bad")) }
	}},
	{name: "the same object in two files", act: func(w *world) func() {
		s, slices := w.everywhere("web", 1, "b1")
		w.must(w.folder.Put("twice", objects(s, slices)...))
		return func() { w.must(w.folder.Remove("twice")) }
	}},
	{name: "the folder is away", act: func(w *world) func() {
		away := w.folder.Path + ".away"
		w.must(os.Rename(w.folder.Path, away))
		return func() { w.must(os.Rename(away, w.folder.Path)) }
	}},
	{name: "the file of the Service is empty", act: func(w *world) func() {
		name := filepath.Join(w.folder.Path, "web.yaml")
		text, err := os.ReadFile(name)
		w.must(err)
		w.must(w.folder.Write("web", nil))
		return func() { w.must(w.folder.Write("web", text)) }
	}},
	{name: "the agent is killed", act: func(w *world) func() {
		w.must(w.agent.Kill())
		return func() { w.must(w.agent.Start()) }
	}},
	{name: "the agent is killed, and its pins are removed", act: func(w *world) func() {
		w.must(w.agent.Kill())
		w.must(os.RemoveAll(w.agent.BPFFS()))
		return func() { w.must(w.agent.Start()) }
	}},
	{name: "the pins are removed", act: func(w *world) func() {
		w.must(os.RemoveAll(w.agent.BPFFS()))
		return func() {}
	}},
	{name: "the server of a backend is killed", unseen: elsewhere, act: func(w *world) func() {
		w.must(w.Host("b1").KillServer())
		return func() { w.must(w.Host("b1").StartServer(lab.ServerOptions{})) }
	}},
	{name: "no default route", act: func(w *world) func() {
		restore := w.keepNetwork()
		w.runOn("node-a", "sh", "-ec", "ip route del default; ip -6 route del default")
		return restore
	}},
	{name: "a backend behind an unreachable route", do: "ip route add unreachable $B4; ip -6 route add unreachable $B6", undo: "ip route del unreachable $B4; ip -6 route del unreachable $B6"},
	{name: "a backend behind a blackhole", do: "ip route add blackhole $B4; ip -6 route add blackhole $B6", undo: "ip route del blackhole $B4; ip -6 route del blackhole $B6"},
	{name: "a routing rule that prohibits a backend", do: "ip rule add to $B4 prohibit; ip -6 rule add to $B6 prohibit", undo: "ip rule del to $B4 prohibit; ip -6 rule del to $B6 prohibit"},
	{name: "the client behind a blackhole", do: "ip route add blackhole $C4; ip -6 route add blackhole $C6", undo: "ip route del blackhole $C4; ip -6 route del blackhole $C6"},
	{name: "a permanent neighbour with a wrong address", unseen: elsewhere, do: "ip neigh replace $G4 lladdr 02:00:00:00:00:99 nud permanent dev eth0; ip neigh replace $G6 lladdr 02:00:00:00:00:99 nud permanent dev eth0",
		undo: "ip neigh del $G4 dev eth0; ip neigh del $G6 dev eth0"},
	{name: "no forwarding", do: "sysctl -qw net.ipv4.conf.all.forwarding=0 net.ipv6.conf.all.forwarding=0", undo: "sysctl -qw net.ipv4.conf.all.forwarding=1 net.ipv6.conf.all.forwarding=1"},
	{name: "no forwarding at the device", do: "sysctl -qw net.ipv4.conf.eth0.forwarding=0 net.ipv6.conf.eth0.forwarding=0", undo: "sysctl -qw net.ipv4.conf.eth0.forwarding=1 net.ipv6.conf.eth0.forwarding=1"},
	{name: "the device is down", act: func(w *world) func() {
		restore := w.keepNetwork()
		w.runOn("node-a", "ip", "link", "set", "eth0", "down")
		return func() {
			w.runOn("node-a", "ip", "link", "set", "eth0", "up")
			restore()
		}
	}},
	{name: "the device was down, and its routes are lost", act: func(w *world) func() {
		restore := w.keepNetwork()
		w.runOn("node-a", "sh", "-ec", "ip link set eth0 down; ip link set eth0 up")
		return restore
	}},
	{name: "a rule in chain forward", do: "nft 'table inet m { chain c { type filter hook forward priority 0; drop; }; }'", undo: "nft delete table inet m"},
	{name: "a rule in chain input", do: "nft 'table inet m { chain c { type filter hook input priority 0; drop; }; }'", undo: "nft delete table inet m"},
	{name: "a rule in chain output", do: "nft 'table inet m { chain c { type filter hook output priority 0; meta l4proto tcp tcp dport 8080 drop; }; }'", undo: "nft delete table inet m"},
	{name: "a rule before conntrack", do: "nft 'table inet m { chain c { type filter hook prerouting priority -300; ip saddr $C4 drop; ip6 saddr $C6 drop; }; }'", undo: "nft delete table inet m"},
	{name: "a rule at the device's ingress", do: "nft 'table netdev m { chain c { type filter hook ingress device eth0 priority 0; ip saddr $C4 drop; ip6 saddr $C6 drop; }; }'", undo: "nft delete table netdev m"},
	{name: "a rule at the device's egress", do: "nft 'table netdev m { chain c { type filter hook egress device eth0 priority 0; ip daddr $B4 drop; ip6 daddr $B6 drop; }; }'", undo: "nft delete table netdev m"},
	{name: "an XFRM policy that blocks", do: "ip xfrm policy add dir out dst $B4 action block; ip xfrm policy add dir out dst $B6 action block", undo: "ip xfrm policy flush"},
	{name: "a rule on the backend's node", host: "node-b", unseen: elsewhere, do: "nft 'table inet m { chain c { type filter hook forward priority 0; drop; }; }'", undo: "nft delete table inet m"},
	{name: "no route back on the backend's node", host: "node-b", unseen: elsewhere, do: "ip route add blackhole $A4; ip -6 route add blackhole $A6", undo: "ip route del blackhole $A4; ip -6 route del blackhole $A6"},
	{name: "IPv6 is switched off at the device", act: func(w *world) func() {
		restore := w.keepNetwork()
		w.runOn("node-a", "sysctl", "-qw", "net.ipv6.conf.eth0.disable_ipv6=1")
		return func() {
			w.runOn("node-a", "sysctl", "-qw", "net.ipv6.conf.eth0.disable_ipv6=0")
			restore()
		}
	}},
	{name: "the node's address is removed", act: func(w *world) func() {
		restore := w.keepNetwork()
		w.runOn("node-a", "sh", "-c", "ip -4 addr flush dev eth0 scope global; ip -6 addr flush dev eth0 scope global")
		return restore
	}},
	{name: "a small MTU", do: "ip link set eth0 mtu 1300", undo: "ip link set eth0 mtu 1500"},
}

// keepNetwork notes node-a's addresses and routes; restore adds those that are missing.
func (w *world) keepNetwork() (restore func()) {
	w.t.Helper()
	var again strings.Builder
	var defaults strings.Builder // their gateways have routes of their own
	for _, family := range []string{"-4", "-6"} {
		for _, line := range strings.Split(w.output("node-a", "ip", family, "-o", "addr", "show", "dev", "eth0", "scope", "global"), "\n") {
			if f := strings.Fields(line); len(f) > 3 {
				fmt.Fprintf(&again, "ip %s addr replace %s dev eth0 %s\n", family, f[3], map[string]string{"-6": "nodad"}[family])
			}
		}
		for _, line := range strings.Split(w.output("node-a", "ip", family, "route", "show", "table", "main"), "\n") {
			if line = strings.ReplaceAll(line, "pref medium", ""); line != "" && !strings.Contains(line, "proto kernel") {
				to := &again
				if strings.HasPrefix(line, "default") {
					to = &defaults
				}
				fmt.Fprintf(to, "ip %s route replace %s\n", family, line)
			}
		}
	}
	return func() { w.t.Helper(); w.runOn("node-a", "sh", "-ec", again.String()+defaults.String()) }
}

// begin has the mishap happen.
func (m *mishap) begin(w *world, apply func(change func(*corev1.Service, []*discoveryv1.EndpointSlice))) (undo func()) {
	w.t.Helper()
	switch {
	case m.change != nil:
		apply(m.change)
		return func() { apply(nil) }
	case m.act != nil:
		return m.act(w)
	}
	host := m.host
	if host == "" {
		host = "node-a"
	}
	b, c, a := w.Host("b1"), w.Host("client"), w.Host("node-a")
	fabric := w.Host("fabric")
	shell := func(commands string) {
		w.t.Helper()
		commands = strings.NewReplacer("$B4", b.Addr4.String(), "$B6", b.Addr6.String(), "$C4", c.Addr4.String(), "$C6", c.Addr6.String(),
			"$A4", a.Addr4.String(), "$A6", a.Addr6.String(), "$G4", fabric.Addr4.String(), "$G6", fabric.Addr6.String()).Replace(commands)
		w.runOn(host, "sh", "-ec", commands)
	}
	shell(m.do)
	return func() {
		w.t.Helper()
		if m.undo != "" {
			shell(m.undo)
		}
	}
}

// A way is how clients reach the Service.
type way struct {
	from, network string
	to            netip.AddrPort
}

func (w *world) ways() (all []way) {
	for family := range 2 {
		for _, network := range []string{"tcp", "udp"} {
			for _, kind := range []string{"NodePort", "ExternalIP", "LoadBalancer"} {
				all = append(all, way{"client", network, w.address(kind, 1, family)})
			}
			all = append(all, way{"a1", network, w.address("ClusterIP", 1, family)})
		}
	}
	return all
}

// lost sends requests by all ways, and returns those by which at least one is not answered twice in a row.
func (w *world) lost() (failed []string) {
	const rounds = 6
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, one := range w.ways() {
		asking.Go(func() {
			for range rounds {
				var err error
				for _, limit := range []time.Duration{time.Second, 5 * time.Second} {
					ctx, cancel := context.WithTimeout(w.t.Context(), limit)
					_, err = w.Host(one.from).Request(ctx, one.network, one.to.String(), "hello")
					if cancel(); err == nil {
						break
					}
				}
				if err != nil {
					mu.Lock()
					failed = append(failed, fmt.Sprintf("%s %s %s: %v", one.from, one.network, one.to, err))
					mu.Unlock()
					return
				}
			}
		})
	}
	asking.Wait()
	return failed
}

// headline is the first line of the status, and its exit code.
func (w *world) headline() (string, int) {
	w.t.Helper()
	text, code := w.runAt("node-a", "status", "--agent-socket", w.agent.Socket())
	lines := strings.SplitN(text, "\n", 6)
	return strings.Join(lines[:min(len(lines), 5)], " | "), code
}

// Whatever loses traffic is in the headline of the status, which has an exit code, or in docs/operate/life.md as what
// no node can see. When it has passed, all is well again.
func TestMishaps(t *testing.T) {
	if testing.Short() {
		t.Skipf("the short form has no time for %d mishaps", *mishapCount)
	}
	seed := *mishapSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-mishap-seed=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	life, err := os.ReadFile("../../docs/operate/life.md")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorldOf(t, lab.Shape{}, "--edge-mode=tc")
	w.lead()
	apply := func(change func(*corev1.Service, []*discoveryv1.EndpointSlice)) {
		s, slices := w.everywhere("web", 1, "a2", "b1")
		if change != nil {
			change(s, slices)
		}
		w.must(w.folder.Put("web", node.Objects(s, slices)...))
	}
	apply(nil)
	w.must(w.agent.Start())
	w.await()
	if lost := w.lost(); len(lost) > 0 {
		t.Fatalf("before the first mishap: %s", strings.Join(lost, "\n"))
	}
	losing := 0
	for i := range *mishapCount {
		m := &mishaps[random.IntN(len(mishaps))]
		if i < len(mishaps) && *mishapCount >= len(mishaps) { // each once at least
			m = &mishaps[i]
		}
		if *mishapOnly != "" && !strings.Contains(m.name, *mishapOnly) {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			if w.in(t).happens(m, string(life), apply) {
				losing++
			}
		})
	}
	t.Logf("%d of %d mishaps have lost traffic", losing, *mishapCount)
}

// happens reports whether a mishap loses traffic.
func (w *world) happens(m *mishap, life string, apply func(change func(*corev1.Service, []*discoveryv1.EndpointSlice))) (loses bool) {
	w.t.Helper()
	undo := m.begin(w, apply)
	begun, notice := time.Now(), mishapNotice
	if m.unseen != "" {
		notice = mishapQuiet
	}
	var lost []string
	said, code := "", 0
	for {
		lost = w.lost()
		if said, code = w.headline(); code != 0 || time.Since(begun) > notice {
			break
		}
		if len(lost) == 0 && time.Since(begun) > mishapQuiet {
			break
		}
	}
	switch {
	case len(lost) == 0:
		w.t.Logf("%s: loses nothing; exit code %d: %s", m.name, code, said)
	case code != 0:
		w.t.Logf("%s: loses %s by %d ways; after %v exit code %d: %s", m.name, lost[0], len(lost), time.Since(begun).Round(time.Second), code, said)
	case m.unseen != "" && strings.Contains(life, m.unseen):
		w.t.Logf("%s: loses %s by %d ways; no node sees it", m.name, lost[0], len(lost))
	default:
		w.t.Errorf("%s: %d ways lose traffic, and after %v the status says %s\n%s", m.name, len(lost), time.Since(begun).Round(time.Second), said, strings.Join(lost, "\n"))
	}
	undo()
	w.eventually("all is well again", func() bool {
		now, code := w.headline()
		if lost := w.lost(); len(lost) > 0 || code != 0 {
			w.t.Logf("not yet: exit code %d: %s; lost: %v", code, now, lost)
			return false
		}
		return true
	})
	return len(lost) > 0
}
