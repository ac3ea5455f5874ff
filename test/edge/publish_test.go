// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
	"beeline.io/beeline/test/seed"
)

// Addresses that no host has: those of Services are routed to node-a, those of further clients to the client.
var (
	externalRanges = [2]string{"198.19.0.0/16", "2001:db8:e::/112"}
	ingressRanges  = [2]string{"100.64.0.0/16", "2001:db8:b::/112"}
	clientRanges   = [2]string{"198.18.0.0/16", "2001:db8:c::/112"}
)

// nth is the n-th address of a range.
func nth(prefix string, n int) netip.Addr {
	bytes := netip.MustParsePrefix(prefix).Addr().AsSlice()
	bytes[len(bytes)-2], bytes[len(bytes)-1] = byte(n>>8), byte(n)
	addr, _ := netip.AddrFromSlice(bytes)
	return addr
}

// inModes runs a test for tc and for XDP, with -short for one of them.
func inModes(t *testing.T, f func(t *testing.T, mode string)) {
	inVariants(t, []string{"tc", "xdp"}, f)
}

// inVariants runs a test in each variant. With -short it runs in one, which depends on the test's name and on the
// commit (seed.Choose): test/packet compares the programs of all variants with the same model.
func inVariants(t *testing.T, variants []string, f func(t *testing.T, variant string)) {
	chosen := seed.Choose(t, len(variants))
	for i, variant := range variants {
		t.Run(variant, func(t *testing.T) {
			if testing.Short() && i != chosen {
				t.Skip("-short: in one variant alone, which the commit decides")
			}
			f(t, variant)
		})
	}
}

// lead has the fabric route Services to node-a, and starts servers on nodes, as pods of the host's network.
func (w *world) lead() {
	w.t.Helper()
	to := w.Host("node-a")
	for family, gateway := range []netip.Addr{to.Addr4, to.Addr6} {
		for _, prefix := range []string{externalRanges[family], ingressRanges[family], [2]string{node.ServiceRange4, node.ServiceRange6}[family]} {
			w.must(addRoute(w.Host("fabric"), "node-a", &netlink.Route{Dst: network(prefix), Gw: gateway.AsSlice()}))
		}
	}
	w.serveOnNodes()
}

// serveOnNodes starts servers on nodes that have none, as pods of the host's network.
func (w *world) serveOnNodes() {
	w.t.Helper()
	for _, n := range w.Nodes() {
		if !n.ServerRunning() {
			w.must(n.StartServer(lab.ServerOptions{}))
		}
	}
}

// manyClients gives the client the addresses of clientRanges.
func (w *world) manyClients() {
	w.t.Helper()
	client := w.Host("client")
	for family, gateway := range []netip.Addr{client.Addr4, client.Addr6} {
		to := network(clientRanges[family])
		w.must(addRoute(w.Host("fabric"), "client", &netlink.Route{Dst: to, Gw: gateway.AsSlice()}))
		w.must(addRoute(client, "lo", &netlink.Route{Dst: to, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}))
	}
}

func network(prefix string) *net.IPNet {
	_, network, err := net.ParseCIDR(prefix)
	if err != nil {
		panic(err)
	}
	return network
}

func addRoute(h *lab.Host, device string, route *netlink.Route) error {
	nl, link, err := h.OpenDevice(device)
	if err != nil {
		return err
	}
	defer nl.Close()
	route.LinkIndex = link.Attrs().Index
	if err := nl.RouteReplace(route); err != nil {
		return fmt.Errorf("host %s: route to %s: %w", h.Name, route.Dst, err)
	}
	return nil
}

// everywhere is Service number n with an address of each kind, and its endpoints.
func (w *world) everywhere(name string, n int, pods ...string) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	w.t.Helper()
	s, all := w.public(pods...)
	s.Name, s.Spec.ClusterIPs = name, node.ClusterIPs(uint8(n))
	s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = int32(nodePort + n)
	}
	for family := range 2 {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, nth(externalRanges[family], n).String())
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: nth(ingressRanges[family], n).String()})
	}
	for i, slice := range all {
		slice.Name = fmt.Sprintf("%s-%d", name, i)
		slice.Labels[discoveryv1.LabelServiceName] = name
	}
	return s, all
}

// kinds are the kinds of address of a Service of everywhere.
var kinds = []string{"NodePort", "ExternalIP", "LoadBalancer", "ClusterIP"}

// address is the address of a kind, of Service n in a family (0: IPv4, 1: IPv6).
func (w *world) address(kind string, n, family int) netip.AddrPort {
	switch kind {
	case "NodePort":
		return addresses(w.Host("node-a"), uint16(nodePort+n))[family]
	case "ExternalIP":
		return netip.AddrPortFrom(nth(externalRanges[family], n), 80)
	case "LoadBalancer":
		return netip.AddrPortFrom(nth(ingressRanges[family], n), 80)
	}
	return netip.AddrPortFrom(netip.MustParseAddr(node.ClusterIPs(uint8(n))[family]), 80)
}

// each visits each kind of address of Service n, in each family and protocol.
func (w *world) each(n int, visit func(kind, network string, family int, to netip.AddrPort)) {
	for _, kind := range kinds {
		for family := range 2 {
			for _, network := range []string{"tcp", "udp"} {
				visit(kind, network, family, w.address(kind, n, family))
			}
		}
	}
}

// hostPort is a port of node-a that a pod has.
const hostPort = 9090

// hostPortPod is the Pod object of a pod of the lab with that port, for TCP and UDP.
func hostPortPod(host *lab.Host) runtime.Object {
	pod := &corev1.Pod{}
	pod.APIVersion, pod.Kind, pod.Namespace, pod.Name = "v1", "Pod", "default", host.Name
	pod.Spec.NodeName = host.Node.Name
	pod.Spec.Containers = []corev1.Container{{Name: "server", Image: "server", Ports: []corev1.ContainerPort{
		{ContainerPort: lab.PortTCP, HostPort: hostPort},
		{ContainerPort: lab.PortUDP, HostPort: hostPort, Protocol: corev1.ProtocolUDP},
	}}}
	pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, host.Addr4.String()
	pod.Status.PodIPs = []corev1.PodIP{{IP: host.Addr4.String()}, {IP: host.Addr6.String()}}
	return pod
}
