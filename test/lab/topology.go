// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"
	"slices"
)

// Role says what kind of machine a host represents.
type Role string

const (
	RoleNode   Role = "node"   // runs an agent and pods, and routes for its pods
	RolePod    Role = "pod"    // one pod: one address per family, one cgroup
	RoleClient Role = "client" // a host outside the cluster
	RoleFabric Role = "fabric" // the router between nodes and client
)

// The Service ranges of the lab's cluster. No host has a route to them other than its default route, and the
// fabric has none at all: a connection to a Service that is not translated ends at the fabric as ENETUNREACH.
var (
	ServiceRange4 = netip.MustParsePrefix("10.96.0.0/16")
	ServiceRange6 = netip.MustParsePrefix("fd00:96::/112")
)

// hostPlan is everything that is configured inside one host's namespace.
type hostPlan struct {
	name         string
	role         Role
	node         string // name of the node that a pod belongs to
	addr4, addr6 netip.Addr
	router       bool
	configPlan
	overlay *overlayPlan // nil: packets to pods of other nodes are routed like all others
	bridge  *bridgePlan  // nil: pods are no ports of a bridge
	byTable bool         // a pod of PodsPolicy whose packets the node routes by podTable
}

// configPlan is what is configured on a host's devices.
type configPlan struct {
	addresses []addressPlan
	routes    []routePlan
	rules     []rulePlan
}

func (c *configPlan) add(more configPlan) {
	c.addresses = append(c.addresses, more.addresses...)
	c.routes = append(c.routes, more.routes...)
	c.rules = append(c.rules, more.rules...)
}

// device0 is the one device of a pod, and the uplink of nodes and client.
const device0 = "eth0"

type addressPlan struct {
	device string
	prefix netip.Prefix
}

// routePlan is one route. Without via the destination is on the link; with
// neither device nor via it is unreachable.
type routePlan struct {
	to     netip.Prefix
	device string
	via    netip.Addr
	source netip.Addr // preferred source address, optional
	onLink bool       // no route leads to via, and none is needed
	metric int        // 0: the kernel's default
	table  int        // 0: the main table
}

// rulePlan is a routing rule: packets from or to an address use a table.
type rulePlan struct {
	from, to netip.Prefix // one of them
	table    int
	priority int
}

// linkPlan is one veth pair; each end is created inside its host's namespace.
type linkPlan struct {
	host, device string
	// index is the interface index of the host's end. It differs from the peer's: the kernel takes a device
	// whose index equals its lower device's for a physical one and delays a change of its carrier for up to
	// a second, and IPv6 with it.
	index                int
	peerHost, peerDevice string
	proxyARP             bool         // the host's end answers ARP for podGateway4
	kind                 PodLayout    // PodsNetkit, PodsNetkitL2: netkit devices; else veth
	master               string       // bridge of which the host's end is a port; empty: none
	permanent            []netip.Addr // the peer has permanent neighbour entries for them with the MAC address of the host's end
	mtu                  int          // of both ends; 0: the kernel's default
}

// firstIndex is beyond the indices that the kernel assigns by itself: each namespace has lo and one peer
// device, 1 and 2.
const firstIndex = 11

// topologyPlan is the whole lab as values; network.go applies it.
type topologyPlan struct {
	hosts []*hostPlan
	links []linkPlan
}

func (p *topologyPlan) host(name string) *hostPlan {
	for _, h := range p.hosts {
		if h.name == name {
			return h
		}
	}
	return nil
}

// edgePlan describes a host with an uplink to the fabric.
type edgePlan struct {
	name              string
	addr4, addr6      string
	gateway4          string // the fabric's address on the uplink
	gateway6          string
	podRange4         string // the node's pod range, "" for a client
	podRange6         string
	pod4, pod6, short string // prefixes of the pods' addresses and names
}

const podsPerNode = 3

// nodes are those that every lab has.
var nodes = []edgePlan{
	{
		name: "node-a", short: "a",
		addr4: "192.168.100.1", gateway4: "192.168.100.254", podRange4: "10.10.1.0/24", pod4: "10.10.1.1",
		addr6: "fd00:100::1", gateway6: "fd00:100::fe", podRange6: "fd00:10:1::/64", pod6: "fd00:10:1::1",
	},
	{
		name: "node-b", short: "b",
		addr4: "192.168.100.2", gateway4: "192.168.100.254", podRange4: "10.10.2.0/24", pod4: "10.10.2.1",
		addr6: "fd00:100::2", gateway6: "fd00:100::fe", podRange6: "fd00:10:2::/64", pod6: "fd00:10:2::1",
	},
}

// client is the external host of every lab.
var client = edgePlan{
	name:  "client",
	addr4: "192.168.200.1", gateway4: "192.168.200.254",
	addr6: "fd00:200::1", gateway6: "fd00:200::fe",
}

// edges are the hosts around the fabric: nodes first.
func (s Shape) edges() []edgePlan {
	all := slices.Clone(nodes)
	if s.ThreeNodes {
		all = append(all, node3)
	}
	if s.Pods == PodsPolicy {
		all = insideNodeNetwork(all)
	}
	all = append(all, client)
	if s.TwoNICs {
		all = append(all, client2)
	}
	return all
}

// plan computes the lab: nodes with three pods each and a client around a
// routing fabric.
func plan(s Shape) *topologyPlan {
	p := &topologyPlan{}
	fabric := &hostPlan{
		name: "fabric", role: RoleFabric, router: true,
		addr4: netip.MustParseAddr(nodes[0].gateway4),
		addr6: netip.MustParseAddr(nodes[0].gateway6),
	}
	for _, e := range s.edges() {
		host := p.addEdge(e)
		if s.Pods == PodsBridge && e.podRange4 != "" {
			host.addBridge(e, s.Network)
		}
		fabric.connect(e, s.Network)
		p.links = append(p.links, linkPlan{host: fabric.name, device: e.name, peerHost: e.name, peerDevice: device0})
		if e.podRange4 == "" {
			continue
		}
		for i := 1; i <= podsPerNode; i++ {
			p.addPod(host, e, i, s)
		}
	}
	if s.Network.Device() != "" {
		p.addOverlay(s)
	}
	if s.TwoNICs {
		p.addSecondNIC(fabric)
	}
	if s.Pods == PodsPolicy {
		p.addPodTables(s, fabric)
	}
	p.hosts = append(p.hosts, fabric)
	if s.Bare {
		p.bare()
	}
	for i := range p.links {
		p.links[i].index = firstIndex + i
	}
	return p
}

// bare leaves only the hosts.
func (p *topologyPlan) bare() {
	p.links = nil
	for _, h := range p.hosts {
		h.configPlan, h.overlay, h.bridge = configPlan{}, nil, nil
	}
}

// connect gives the fabric its end of e's uplink and the routes behind it.
func (fabric *hostPlan) connect(e edgePlan, network Network) {
	for _, f := range []struct{ gateway, addr, pods string }{
		{e.gateway4, e.addr4, e.podRange4},
		{e.gateway6, e.addr6, e.podRange6},
	} {
		addr := netip.MustParseAddr(f.addr)
		fabric.addresses = append(fabric.addresses, addressPlan{e.name, single(netip.MustParseAddr(f.gateway))})
		fabric.routes = append(fabric.routes, routePlan{to: single(addr), device: e.name})
		if f.pods != "" && !network.carries(netip.MustParsePrefix(f.pods)) {
			fabric.routes = append(fabric.routes, routePlan{to: netip.MustParsePrefix(f.pods), device: e.name, via: addr})
		}
	}
}

// addEdge adds a node or the client, without pods.
func (p *topologyPlan) addEdge(e edgePlan) *hostPlan {
	h := &hostPlan{
		name: e.name, role: RoleClient,
		addr4: netip.MustParseAddr(e.addr4),
		addr6: netip.MustParseAddr(e.addr6),
	}
	for _, f := range []struct{ addr, gateway, pods string }{
		{e.addr4, e.gateway4, e.podRange4},
		{e.addr6, e.gateway6, e.podRange6},
	} {
		gateway := netip.MustParseAddr(f.gateway)
		h.addresses = append(h.addresses, addressPlan{device0, single(netip.MustParseAddr(f.addr))})
		h.routes = append(h.routes,
			routePlan{to: single(gateway), device: device0},
			routePlan{to: anywhere(gateway), device: device0, via: gateway})
		if f.pods != "" {
			h.role, h.router = RoleNode, true
			// Without it a packet to an unknown pod would return by the default route, and loop
			// until its hop limit.
			h.routes = append(h.routes, routePlan{to: netip.MustParsePrefix(f.pods)})
		}
	}
	p.hosts = append(p.hosts, h)
	return h
}

// single is the prefix that holds addr alone.
func single(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }

// anywhere is the default route's destination in addr's family.
func anywhere(addr netip.Addr) netip.Prefix {
	if addr.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}
