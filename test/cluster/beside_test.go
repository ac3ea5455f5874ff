// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"beeline.io/beeline/test/controlplane"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// Addresses outside the cluster that the fabric routes to node-a.
const publicRange4, publicRange6 = "192.0.2.0/24", "2001:db8:b::/64"

// besideService is a Service of TestStartBesideKubeProxy.
type besideService struct {
	name     string
	n        uint8
	policy   corev1.ServiceExternalTrafficPolicy
	backends string // the node whose pods serve
}

var besideServices = []besideService{
	{"cluster-other-node", 40, corev1.ServiceExternalTrafficPolicyCluster, "node-b"},
	{"cluster-this-node", 41, corev1.ServiceExternalTrafficPolicyCluster, "node-a"},
	{"local", 42, corev1.ServiceExternalTrafficPolicyLocal, "node-a"},
}

// public returns a load-balancer or external IP of each family.
func (s besideService) public(kind uint8) []string {
	return []string{fmt.Sprintf("192.0.2.%d", kind+s.n), fmt.Sprintf("2001:db8:b::%x", kind+s.n)}
}

const loadBalancerIP, externalIP = 0, 100

// create creates the Service: TCP and UDP port 80, with all kinds of addresses.
func (s besideService) create(t *testing.T, c *Cluster) *corev1.Service {
	t.Helper()
	object := NewService(s.name, s.n, map[string]string{LabelNode: s.backends})
	object.Spec.Type, object.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, s.policy
	object.Spec.Ports = append(object.Spec.Ports, corev1.ServicePort{
		Name: "udp", Protocol: corev1.ProtocolUDP, Port: 80, TargetPort: intstr.FromInt32(lab.PortUDP),
	})
	object.Spec.ExternalIPs = s.public(externalIP)
	for _, ip := range s.public(loadBalancerIP) {
		object.Status.LoadBalancer.Ingress = append(object.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	created, err := c.CreateService(t.Context(), object)
	must(t, err)
	return created
}

// besideFlows are the flows of one client to one address of a Service.
type besideFlows struct {
	what, from, network string
	to                  netip.AddrPort
	nodePorts           map[uint16]bool // of UDP, of all Services
	conns               []net.Conn
	pods                []string // who has answered each first
}

// targets returns the flows to a Service that are to be opened: of a client outside to each address, and of a pod and
// of the node to its ClusterIP.
func (s besideService) targets(c *Cluster, object *corev1.Service) (all []*besideFlows) {
	node := c.Lab.Host("node-a")
	for i, network := range []string{"tcp", "udp"} {
		add := func(kind, from string, port int32, ips ...string) {
			for _, ip := range ips {
				to := netip.AddrPortFrom(netip.MustParseAddr(ip), uint16(port))
				what := fmt.Sprintf("%s, %s, %s from %s to %s", s.name, kind, network, from, to)
				all = append(all, &besideFlows{what: what, from: from, network: network, to: to})
			}
		}
		add("NodePort", "client", object.Spec.Ports[i].NodePort, hostAddresses(node)...)
		add("load-balancer IP", "client", 80, s.public(loadBalancerIP)...)
		add("external IP", "client", 80, s.public(externalIP)...)
		for _, from := range []string{"a1", "node-a"} {
			add("ClusterIP", from, 80, object.Spec.ClusterIPs...)
		}
	}
	return all
}

// open opens further flows, and asks by each.
func (f *besideFlows) open(ctx context.Context, c *Cluster, count int) error {
	for count += len(f.conns); len(f.conns) < count; {
		conn, err := c.Lab.Host(f.from).Dial(ctx, f.network, f.to.String())
		if err != nil {
			return fmt.Errorf("%s: %w", f.what, err)
		}
		answer, err := lab.Ask(ctx, conn, "hello")
		if err != nil {
			conn.Close()
			return fmt.Errorf("%s: %w", f.what, err)
		}
		// The answer to a pod that is masqueraded to a NodePort's number is taken for a datagram to the Service
		// (docs/operate/differences.md).
		if f.network == "udp" && f.from != "client" && f.nodePorts[answer.Peer.Port()] {
			conn.Close()
			continue
		}
		f.conns, f.pods = append(f.conns, conn), append(f.pods, answer.Pod)
	}
	return nil
}

func (f *besideFlows) close() {
	for _, conn := range f.conns {
		conn.Close()
	}
	f.conns, f.pods = nil, nil
}

// ask asks by all flows at once, and returns how many have failed, or have another backend than before, and why the
// first did.
func (f *besideFlows) ask(limit time.Duration) (lost int, first error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for i, conn := range f.conns {
		all.Go(func() {
			answer, err := lab.Ask(ctx, conn, "hello")
			if err == nil && answer.Pod != f.pods[i] {
				err = fmt.Errorf("%s answers, %s before", answer.Pod, f.pods[i])
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				lost++
				first = err
			}
		})
	}
	all.Wait()
	return lost, first
}

// beside is a node on which kube-proxy runs, and flows that it has translated.
type beside struct {
	*Cluster
	t       *testing.T
	proxy   *KubeProxy
	objects []*corev1.Service
}

func newBeside(t *testing.T, mode string) *beside {
	t.Helper()
	b := &beside{Cluster: New(t), t: t}
	for _, argv := range [][]string{
		{"ip", "route", "add", publicRange4, "via", b.Lab.Host("node-a").Addr4.String()},
		{"ip", "route", "add", publicRange6, "via", b.Lab.Host("node-a").Addr6.String()},
	} {
		must(t, b.Lab.Host("fabric").Command(t.Context(), argv...).Run())
	}
	proxy, err := b.StartKubeProxyIn(t.Context(), mode, b.Lab.Host("node-a"))
	must(t, err)
	b.proxy = proxy
	for _, s := range besideServices {
		b.objects = append(b.objects, s.create(t, b.Cluster))
		b.eventuallyHasSlices(s.name)
	}
	b.awaitProxy(t, proxy)
	return b
}

func (b *beside) eventuallyHasSlices(service string) {
	b.t.Helper()
	eventually(b.t, "the EndpointSlices of "+service, func() error {
		all, err := b.slices(b.t, service)
		ready := 0
		for _, slice := range all {
			ready += len(slice.Endpoints)
		}
		if err == nil && ready < 4 { // two pods at least, of two families
			err = fmt.Errorf("%d endpoints", ready)
		}
		return err
	})
}

// flows opens so many flows for each combination.
func (b *beside) flows(each int) (all []*besideFlows) {
	b.t.Helper()
	nodePorts := map[uint16]bool{}
	for i, s := range besideServices {
		all = append(all, s.targets(b.Cluster, b.objects[i])...)
		nodePorts[uint16(b.objects[i].Spec.Ports[1].NodePort)] = true
	}
	for _, f := range all {
		f.nodePorts = nodePorts
	}
	b.t.Cleanup(func() {
		for _, f := range all {
			f.close()
		}
	})
	for _, f := range all {
		must(b.t, f.open(within(b.t, patience), b.Cluster, each))
	}
	return all
}

// use asks by the groups of flows and opens new ones in them, in turn, until stop. A handshake that is half open
// when programs are attached may cost a retransmission.
func (b *beside) use(all []*besideFlows) (stop func()) {
	ended := make(chan struct{})
	var users sync.WaitGroup
	users.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-ended:
				return
			default:
			}
			f := all[n%len(all)]
			if (n+n/len(all))%2 == 0 {
				if lost, err := f.ask(20 * time.Second); lost > 0 {
					b.t.Errorf("%s: %d of %d flows are lost while the agent starts: %v", f.what, lost, len(f.conns), err)
				}
				continue
			}
			if f.network != "tcp" { // nobody repeats a datagram
				continue
			}
			if _, err := b.Lab.Host(f.from).Request(within(b.t, 20*time.Second), f.network, f.to.String(), "hello"); err != nil {
				b.t.Errorf("%s: a connection while the agent starts: %v", f.what, err)
			}
		}
	})
	return sync.OnceFunc(func() {
		close(ended)
		users.Wait()
	})
}

// An agent that starts beside kube-proxy loses no flow that kube-proxy has translated, of clients outside the cluster,
// of pods and of the node: its edge leaves them to netfilter (R30). New flows are Beeline's at once.
func TestStartBesideKubeProxy(t *testing.T) {
	each, modes := 200, controlplane.Modes
	if testing.Short() {
		each, modes = 2, []string{controlplane.NFTables, controlplane.IPTables}
	}
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			b := newBeside(t, mode)
			for _, edge := range []string{"tc", "xdp"} {
				b.startsBeside(edge, each)
			}
		})
	}
}

func (b *beside) startsBeside(edge string, each int) {
	b.t.Helper()
	if edge == "xdp" {
		must(b.t, b.Lab.ReadyForXDP())
	}
	all := b.flows(each)
	agent := b.NewAgent(beeline, b.Lab.Host("node-a"))
	agent.Log, agent.Flags = &node.Log{}, []string{"--edge-mode=" + edge}
	stop := b.use(all)
	defer stop()
	must(b.t, agent.Start())
	b.atMark(b.t, agent)
	stop()
	for range 2 {
		for _, f := range all {
			if lost, err := f.ask(10 * time.Second); lost > 0 {
				b.t.Errorf("%s: %d of %d flows are lost beside Beeline by %s: %v", f.what, lost, len(f.conns), edge, err)
			}
		}
	}
	status, err := agent.Status()
	must(b.t, err)
	before := status.Edge.Counters["new"]
	for _, f := range all {
		must(b.t, f.open(within(b.t, patience), b.Cluster, 1))
	}
	status, err = agent.Status()
	must(b.t, err)
	// Of hundreds of flows some come from the port of an earlier one, which netfilter still has.
	outside := slices.DeleteFunc(slices.Clone(all), func(f *besideFlows) bool { return f.from != "client" })
	if got := status.Edge.Counters["new"] - before; got < uint64(len(outside)*3/4) {
		b.t.Errorf("by %s %d new flows were Beeline's, want nearly all %d", edge, got, len(outside))
	}
	must(b.t, agent.Stop())
	out, err := agent.CLI("cleanup")
	if err != nil {
		b.t.Fatalf("%v: %s", err, out)
	}
	for _, f := range all {
		f.close()
	}
}
