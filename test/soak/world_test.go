// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// patience bounds all waiting. No result depends on it.
const patience = time.Minute

// fewFlows and fewAffinities are sizes of tables that the clients' closed connections and a flood of seconds fill.
const (
	fewFlows      = 2048
	fewAffinities = 480
)

// The Services, by number: their ClusterIPs and NodePorts.
const (
	steady   = 11 // its endpoints never change: flows keep theirs
	changing = 12 // its endpoints change all the time
	sticky   = 13 // with session affinity
	nodePort = 30080
)

var serviceNames = map[int]string{steady: "steady", changing: "changing", sticky: "sticky"}

// auditInterval lets an audit follow each event soon.
const auditInterval = 2 * time.Second

// A world is a node with two devices, eth0 served by XDP and eth1 by tc, its agent, and all of its clients.
type world struct {
	*lab.Lab
	t        *testing.T
	random   *rand.Rand
	objects  source
	agent    *node.Agent
	versions [2]string // programs with other layouts of the tables, each migrates those of the one before
	foreign  *foreign
	flood    *flooder
	clients  []*client
	tallies  []*tally
	queues   queues
	end      chan struct{}
	running  sync.WaitGroup
	stopping sync.Once

	killed   atomic.Int64
	happened map[string]int // events
	fill     fill

	mu      sync.Mutex
	windows []window
}

// newWorld makes a node whose agent runs and whose clients are served. eth1 has an XDP program of its own, so tc
// serves there.
func newWorld(t *testing.T, random *rand.Rand) *world {
	t.Helper()
	w := &world{Lab: lab.NewOf(t, lab.Shape{TwoNICs: true}), t: t, random: random, end: make(chan struct{}), happened: map[string]int{}, fill: fill{}, queues: queues{places: map[string]int{}}}
	w.must(w.StartServers())
	w.must(w.ReadyForXDP())
	w.routeBySource()
	w.objects = w.newSource()
	w.must(w.objects.put("cluster", node.Cluster(w.Lab)...))
	w.must(w.objects.put("steady", w.service(steady, "a1", "b1", "b2")...))
	w.must(w.objects.put("changing", w.service(changing, "a1", "b1")...))
	w.must(w.objects.put("sticky", w.service(sticky, "a1", "a3", "b1", "b2")...))
	w.foreign = w.newForeign()
	w.versions = w.newVersions()
	w.agent = w.newAgent()
	w.must(w.agent.Start())
	w.flood = w.newFlooder()
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) newAgent() *node.Agent {
	log := &node.Log{}
	a := &node.Agent{Host: w.Host("node-a"), Program: program, MaxFlows: fewFlows, Log: log, EdgeMode: "xdp",
		Flags: []string{"--audit-interval", auditInterval.String(), "--nodeport-addresses=0.0.0.0/0,::/0",
			"--max-affinity", fmt.Sprint(fewAffinities), "--max-frontends", fmt.Sprint(maxFrontends)}}
	w.objects.configure(a)
	w.t.Cleanup(func() {
		if err := a.Kill(); err != nil {
			w.t.Errorf("the agent ended before it was killed: %v", err)
		}
		unix.Unmount(a.BPFFS(), unix.MNT_DETACH) // if the agent has mounted it
		if w.t.Failed() {
			w.t.Logf("the agent printed:\n%s", tailOf(log.String(), 20000))
		}
	})
	return a
}

func tailOf(text string, size int) string { return text[max(0, len(text)-size):] }

// service is a Service with TCP and UDP, in both families.
func (w *world) service(n int, pods ...string) (all []runtime.Object) {
	var hosts []*lab.Host
	for _, name := range pods {
		hosts = append(hosts, w.Host(name))
	}
	s, endpointSlices := node.Service(serviceNames[n], uint8(n)), node.Slices(serviceNames[n], hosts...)
	node.SetPorts(s, endpointSlices,
		node.Port{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: 80, Target: lab.PortTCP},
		node.Port{Name: "udp", Protocol: corev1.ProtocolUDP, Port: 80, Target: lab.PortUDP})
	s.Spec.Type = corev1.ServiceTypeNodePort
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = int32(nodePort + n)
	}
	if n == sticky {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	all = append(all, s)
	for _, slice := range endpointSlices {
		all = append(all, slice)
	}
	return all
}

// churn changes the endpoints of a Service until the world ends. All servers keep running.
func (w *world) churn() {
	random := rand.New(rand.NewPCG(w.random.Uint64(), 0))
	pods := []string{"a1", "a3", "b1", "b2", "b3"}
	w.running.Go(func() {
		for {
			select {
			case <-w.end:
				return
			case <-time.After(500 * time.Millisecond):
			}
			random.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
			some := slices.Clone(pods[:1+random.IntN(len(pods))])
			if err := w.objects.put("changing", w.service(changing, some...)...); err != nil && !w.objects.isAway() {
				w.t.Errorf("changing endpoints: %v", err)
			}
		}
	})
}

// stopClients ends all clients, and the changes.
func (w *world) stopClients() {
	w.stopping.Do(func() { close(w.end) })
	w.running.Wait()
}

// ownAddresses are node-a's addresses at the device that a client is behind, by family.
func (w *world) ownAddresses(client string) []netip.Addr {
	if client == "client2" {
		return lab.SecondAddresses()
	}
	return []netip.Addr{w.Host("node-a").Addr4, w.Host("node-a").Addr6}
}

// routeBySource has node-a send IPv6 packets from an address by the device that has it, unless the main table has
// a route that is no default route: the kernel's lookup there does not ask for a device.
func (w *world) routeBySource() {
	w.t.Helper()
	w.must(w.Host("node-a").Do(func() error {
		first := netlink.NewRule()
		first.Family, first.Table, first.Priority, first.SuppressPrefixlen = netlink.FAMILY_V6, unix.RT_TABLE_MAIN, 100, 0
		if err := netlink.RuleAdd(first); err != nil {
			return fmt.Errorf("rule for routes that are no default routes: %w", err)
		}
		for i, device := range []string{"eth0", "eth1"} {
			own := w.ownAddresses([]string{"client", "client2"}[i])[1]
			rule := netlink.NewRule()
			rule.Family, rule.Src, rule.Table, rule.Priority = netlink.FAMILY_V6, netlink.NewIPNet(own.AsSlice()), 100+i, 101
			if err := netlink.RuleAdd(rule); err != nil {
				return fmt.Errorf("rule for %s: %w", own, err)
			}
			link, err := netlink.LinkByName(device)
			if err != nil {
				return err
			}
			gateway := own.As16()
			gateway[15] = 0xfe
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway[:], Table: 100 + i}); err != nil {
				return fmt.Errorf("route by %s: %w", device, err)
			}
		}
		return nil
	}))
	w.must(w.Host("fabric").Do(func() error { // replies to forged sources end here
		for _, sources := range forgedSources {
			_, to, err := net.ParseCIDR(sources.String())
			if err != nil {
				return err
			}
			if err := netlink.RouteAdd(&netlink.Route{Dst: to, Type: unix.RTN_BLACKHOLE}); err != nil {
				return err
			}
		}
		return nil
	}))
}

// eventually polls until a condition holds.
func (w *world) eventually(what string, ok func() error) {
	w.t.Helper()
	for begun := time.Now(); ; {
		asked := time.Now()
		err := ok()
		if err == nil {
			return
		}
		if time.Since(begun) > patience {
			w.t.Fatalf("waited %v in vain for this: %s: %v", patience, what, err)
		}
		time.Sleep(max(50*time.Millisecond, node.PollPause(begun, asked)))
	}
}
