// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A PodLayout says how pods are connected to their node.
type PodLayout string

const (
	// PodsRouted has a route to each pod by its veth device, where the node answers ARP for the pod's gateway,
	// as with Calico.
	PodsRouted PodLayout = "routed"
	// PodsBridge has the veth devices of pods as ports of a bridge with the address of their gateway, as with
	// flannel, kubenet and the CNI plugin bridge. Pods of one node reach each other on the link.
	PodsBridge PodLayout = "bridge"
	// PodsPolicy has pods with addresses in the network of the nodes, as with the VPC CNI of AWS: a route to each
	// pod by its veth device; a permanent neighbour entry for the gateway in the pod; routing rules that have
	// packets to pods use the main table, and those from the second pod of each node a table of its own. The
	// default route there is by eth1 if the node has one.
	PodsPolicy PodLayout = "policy"
	// PodsNetkit is PodsRouted with netkit devices (Linux 6.7) without MAC addresses, as with Cilium in its mode
	// netkit, and PodsNetkitL2 with such that have MAC addresses.
	PodsNetkit   PodLayout = "netkit"
	PodsNetkitL2 PodLayout = "netkit-l2"
)

// PodLayouts are all values, for a flag.
var PodLayouts = []string{string(PodsRouted), string(PodsBridge), string(PodsPolicy), string(PodsNetkit), string(PodsNetkitL2)}

func (s *Shape) completePods() error {
	switch s.Pods {
	case "":
		s.Pods = PodsRouted
	case PodsRouted, PodsBridge, PodsNetkit, PodsNetkitL2:
	case PodsPolicy:
		if s.Network != NetworkRouted {
			return fmt.Errorf("pods %s need network %s, not %s: their addresses are in the network of the nodes", s.Pods, NetworkRouted, s.Network)
		}
	default:
		return fmt.Errorf("unknown layout of pods %q: use %s", s.Pods, strings.Join(PodLayouts, ", "))
	}
	return nil
}

// podGateway4 is the pods' default gateway. No device has it: the node answers ARP for it (proxy_arp), so that
// the node gets no extra local address. podGateway6 is a link-local address on every pod device of a node.
var (
	podGateway4 = netip.MustParseAddr("169.254.1.1")
	podGateway6 = netip.MustParsePrefix("fe80::1/64")
)

// BridgeDevice is the bridge of a node with PodsBridge.
const BridgeDevice = "cni0"

// bridgePlan is a node's bridge. Its addresses are the pods' gateways.
type bridgePlan struct {
	mtu int // 0: the kernel's default
}

// addBridge gives a node its bridge, with the second address of the pod range, as the CNI plugin host-local has it. The
// route to the range is by the bridge, not unreachable.
func (h *hostPlan) addBridge(e edgePlan, network Network) {
	h.bridge = &bridgePlan{network.MTU()}
	kept := h.routes[:0]
	for _, r := range h.routes {
		if r.device != "" {
			kept = append(kept, r)
		}
	}
	h.routes = kept
	for _, text := range []string{e.podRange4, e.podRange6} {
		pods := netip.MustParsePrefix(text)
		h.addresses = append(h.addresses, addressPlan{BridgeDevice, netip.PrefixFrom(pods.Addr().Next(), pods.Bits())})
	}
}

func (b *bridgePlan) create(nl *netlink.Handle) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = BridgeDevice, b.mtu
	if err := nl.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("creating bridge %s (needs CONFIG_BRIDGE): %w", BridgeDevice, err)
	}
	return setUp(nl, BridgeDevice)
}

// setMaster makes a device a port of a bridge.
func (h hostHandle) setMaster(device, bridge string) error {
	port, err := h.nl.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s: %w", device, err)
	}
	master, err := h.nl.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("device %s: %w", bridge, err)
	}
	if err := h.nl.LinkSetMaster(port, master); err != nil {
		return fmt.Errorf("making device %s a port of %s: %w", device, bridge, err)
	}
	return nil
}

// addPermanent adds the peer's permanent neighbour entries.
func (l linkPlan) addPermanent(host, peer hostHandle) error {
	if len(l.permanent) == 0 {
		return nil
	}
	own, err := host.nl.LinkByName(l.device)
	if err != nil {
		return fmt.Errorf("device %s: %w", l.device, err)
	}
	device, err := peer.nl.LinkByName(l.peerDevice)
	if err != nil {
		return fmt.Errorf("device %s: %w", l.peerDevice, err)
	}
	for _, addr := range l.permanent {
		entry := &netlink.Neigh{
			LinkIndex: device.Attrs().Index, State: netlink.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: own.Attrs().HardwareAddr,
		}
		if err := peer.nl.NeighSet(entry); err != nil {
			return fmt.Errorf("neighbour entry for %s: %w", addr, err)
		}
	}
	return nil
}

// insideNodeNetwork has the nodes' pods in their own network: 8 addresses and a /112 for each node.
func insideNodeNetwork(nodes []edgePlan) []edgePlan {
	for i := range nodes {
		e := &nodes[i]
		first := []int{1, 2, 4}[i] // 192.168.100.31 to .33 are in no common range of 8
		e.pod4 = fmt.Sprintf("192.168.100.%d", first)
		e.podRange4 = netip.PrefixFrom(netip.MustParseAddr(e.pod4+"1"), 29).Masked().String()
		e.pod6 = fmt.Sprintf("fd00:100::%s:1", e.short)
		e.podRange6 = netip.PrefixFrom(netip.MustParseAddr(e.pod6+"1"), 112).Masked().String()
	}
	return nodes
}

// podTable is the routing table for packets of some pods of PodsPolicy.
const podTable = 2

// Priorities of the rules of PodsPolicy, as the VPC CNI of AWS has them.
const (
	toPodPriority   = 512
	fromPodPriority = 1536
)

// addPodTables gives each node podTable: a default route by eth1 if it has one, else by eth0. The fabric reaches these
// pods the same way.
func (p *topologyPlan) addPodTables(s Shape, fabric *hostPlan) {
	for i, e := range s.edges() {
		node := p.host(e.name)
		if node.role != RoleNode {
			continue
		}
		for family, gateway := range []netip.Addr{netip.MustParseAddr(e.gateway4), netip.MustParseAddr(e.gateway6)} {
			device := device0
			if i == 0 && s.TwoNICs {
				device, gateway = device1, secondGateways[family]
				pod := []netip.Addr{p.host("a2").addr4, p.host("a2").addr6}[family]
				fabric.routes = append(fabric.routes, routePlan{to: single(pod), device: fabricDevice1, via: secondAddresses[family]})
			}
			node.routes = append(node.routes, routePlan{to: anywhere(gateway), device: device, via: gateway, onLink: true, table: podTable})
		}
	}
}

// addPod adds the i-th pod (from 1) of a node.
func (p *topologyPlan) addPod(node *hostPlan, e edgePlan, i int, s Shape) {
	pod := &hostPlan{
		name: fmt.Sprintf("%s%d", e.short, i), role: RolePod, node: node.name, byTable: i == 2,
		addr4: netip.MustParseAddr(fmt.Sprintf("%s%d", e.pod4, i)),
		addr6: netip.MustParseAddr(fmt.Sprintf("%s%d", e.pod6, i)),
	}
	link, atPod, atNode := connectPod(pod, node, s)
	pod.add(atPod)
	node.add(atNode)
	p.hosts = append(p.hosts, pod)
	p.links = append(p.links, link)
}

// connectPod connects a pod and its node: the link between them, and what is configured on both sides.
func connectPod(pod, node *hostPlan, s Shape) (link linkPlan, atPod, atNode configPlan) {
	link = linkPlan{host: node.name, device: pod.name, peerHost: pod.name, peerDevice: device0, mtu: s.Network.MTU()}
	switch s.Pods {
	case PodsBridge:
		link.master = BridgeDevice
		return link, onBridge(pod, node), configPlan{}
	case PodsPolicy:
		link.permanent = []netip.Addr{podGateway4, podGateway6.Addr()}
		atNode.rules = podRules(pod)
	default:
		link.proxyARP, link.kind = true, s.Pods
		atNode.addresses = []addressPlan{{pod.name, podGateway6}}
	}
	atPod.addresses = []addressPlan{{device0, single(pod.addr4)}, {device0, single(pod.addr6)}}
	atPod.routes = []routePlan{
		{to: single(podGateway4), device: device0},
		{to: anywhere(podGateway4), device: device0, via: podGateway4},
		{to: anywhere(podGateway6.Addr()), device: device0, via: podGateway6.Addr()},
	}
	atNode.routes = []routePlan{
		{to: single(pod.addr4), device: pod.name, source: node.addr4},
		{to: single(pod.addr6), device: pod.name, source: node.addr6},
	}
	return link, atPod, atNode
}

// onBridge is the configuration of a pod at a bridge: the pod network is on the link.
func onBridge(pod, node *hostPlan) (c configPlan) {
	for _, a := range node.addresses {
		if a.device != BridgeDevice {
			continue
		}
		own := pod.addr4
		if a.prefix.Addr().Is6() {
			own = pod.addr6
		}
		c.addresses = append(c.addresses, addressPlan{device0, netip.PrefixFrom(own, a.prefix.Bits())})
		c.routes = append(c.routes, routePlan{to: anywhere(own), device: device0, via: a.prefix.Addr()})
	}
	return c
}

// podRules are the node's routing rules for a pod of PodsPolicy.
func podRules(pod *hostPlan) (rules []rulePlan) {
	for _, addr := range []netip.Addr{pod.addr4, pod.addr6} {
		rules = append(rules, rulePlan{to: single(addr), table: unix.RT_TABLE_MAIN, priority: toPodPriority})
		if pod.byTable {
			rules = append(rules, rulePlan{from: single(addr), table: podTable, priority: fromPodPriority})
		}
	}
	return rules
}

func (r rulePlan) rule() *netlink.Rule {
	rule := netlink.NewRule()
	rule.Table, rule.Priority = r.table, r.priority
	rule.Family = netlink.FAMILY_V4
	if r.from.IsValid() {
		rule.Src = ipNet(r.from)
	} else {
		rule.Dst = ipNet(r.to)
	}
	if addr := r.from.Addr(); addr.Is6() || r.to.Addr().Is6() {
		rule.Family = netlink.FAMILY_V6
	}
	return rule
}

// NetkitMissing is why this kernel cannot have PodsNetkit and PodsNetkitL2; empty: it can.
func NetkitMissing() string {
	const loopback = 1
	_, err := link.QueryPrograms(link.QueryOptions{Target: loopback, Attach: ebpf.AttachNetkitPrimary})
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EPERM) { // it is no such device; the lab says what needs root
		return ""
	}
	return fmt.Sprintf("the kernel has no netkit devices (Linux 6.7, CONFIG_NETKIT): %v", err)
}
