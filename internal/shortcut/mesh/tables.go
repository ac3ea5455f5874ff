// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"net/netip"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/util/kernelclock"
)

// A Rule says what a port or a network means for connections of a pod.
type Rule = bpf.MeshMeshRule

// The rules.
const (
	Exclude = bpf.MeshMeshRuleMESH_EXCLUDE
	Include = bpf.MeshMeshRuleMESH_INCLUDE
	// Probe excludes what comes from an address of the node, and ProbeIncluded includes all else.
	Probe         = bpf.MeshMeshRuleMESH_PROBE
	ProbeIncluded = bpf.MeshMeshRuleMESH_PROBE_INCLUDED
)

// A Proxy is what tells the proxy of a pod from applications: a process that has one of these is the proxy. If
// there is nothing, what would go to the proxy is refused.
type Proxy struct {
	// UID and GID are as the agent's user namespace has them; nil: they do not tell.
	UID, GID *uint32
	// Cgroup is the id of the cgroup of the proxy's container; 0: unknown.
	Cgroup uint64
}

// Known reports whether anything tells the proxy.
func (p *Proxy) Known() bool { return p.UID != nil || p.GID != nil || p.Cgroup != 0 }

// A Policy says which connections of a pod go to its proxy.
type Policy struct {
	Proxy Proxy
	// AllOutbound and AllInbound: what no rule names goes to the proxy. Else only what is included.
	AllOutbound, AllInbound bool
	// DNS: the proxy answers for these name servers, or for all.
	DNS, AllNameServers         bool
	NameServers                 []netip.Addr
	OutboundPorts, InboundPorts map[uint16]Rule
	Networks                    map[netip.Prefix]Rule
	Devices                     Devices
}

// Devices are the devices of a pod that have a rule.
type Devices struct {
	// Rules has the rules of devices by their index: Exclude, or Include for those of virtual machines.
	Rules map[uint32]Rule
	// BySource: routes depend on the address to which a socket is bound.
	BySource bool
	// Routes has networks with the rule for what leaves to them.
	Routes map[Route]Rule
}

// A Route is a network to which packets of a pod leave. Source is the address to which the socket is bound, with
// Devices.BySource; invalid: it is not bound.
type Route struct {
	Source netip.Addr
	To     netip.Prefix
}

// A PodPolicy is the policy of a pod with this cgroup; Namespace is the cookie of its network namespace, 0 if it is
// not known yet.
type PodPolicy struct {
	Cgroup, Namespace uint64
	Policy            *Policy
}

// SetPolicies writes the policies of all pods to the tables. The component must be enabled.
//
// Rows of ports and networks are added before, and removed after, those that refer to them.
func (m *Datapath) SetPolicies(all []PodPolicy) error {
	pods, ports, networks := map[bpf.MeshMeshPodKey]bpf.MeshMeshPod{}, map[bpf.MeshMeshPort]uint32{}, map[bpf.MeshMeshNetwork]uint32{}
	servers, containers := map[bpf.MeshMeshNameServer]uint32{}, map[uint64]uint64{}
	devices, routes := map[bpf.MeshMeshDevice]uint32{}, map[bpf.MeshMeshRoute]uint32{}
	for _, p := range all {
		pod := p.row()
		pods[bpf.MeshMeshPodKey{Id: p.Cgroup, Kind: uint32(bpf.MeshMeshPodKindMESH_BY_CGROUP)}] = pod
		if p.Namespace != 0 {
			pods[bpf.MeshMeshPodKey{Id: p.Namespace, Kind: uint32(bpf.MeshMeshPodKindMESH_BY_NETNS)}] = pod
		}
		p.addRules(ports, networks)
		p.addDevices(devices, routes)
		if p.Policy.Proxy.Cgroup != 0 {
			containers[p.Cgroup] = p.Policy.Proxy.Cgroup
		}
		for _, a := range p.Policy.NameServers {
			servers[bpf.MeshMeshNameServer{Cgroup: p.Cgroup, Address: bpf.AddressFrom(a)}] = 1
		}
	}
	portTable := tableOf[bpf.MeshMeshPort, uint32](m, bpf.MeshMapMeshPorts)
	networkTable := tableOf[bpf.MeshMeshNetwork, uint32](m, bpf.MeshMapMeshNetworks)
	serverTable := tableOf[bpf.MeshMeshNameServer, uint32](m, bpf.MeshMapMeshNameServers)
	containerTable := tableOf[uint64, uint64](m, bpf.MeshMapMeshProxyCgroups)
	deviceTable := tableOf[bpf.MeshMeshDevice, uint32](m, bpf.MeshMapMeshDevices)
	routeTable := tableOf[bpf.MeshMeshRoute, uint32](m, bpf.MeshMapMeshRoutes)
	err := errors.Join(bpf.Publish(portTable, ports), bpf.Publish(networkTable, networks), bpf.Publish(serverTable, servers), bpf.Publish(containerTable, containers),
		bpf.Publish(deviceTable, devices), bpf.Publish(routeTable, routes))
	if err != nil {
		return err
	}
	podTable := tableOf[bpf.MeshMeshPodKey, bpf.MeshMeshPod](m, bpf.MeshMapMeshPods)
	return errors.Join(bpf.Mirror(podTable, pods), bpf.Mirror(portTable, ports), bpf.Mirror(networkTable, networks),
		bpf.Mirror(serverTable, servers), bpf.Mirror(containerTable, containers), bpf.Mirror(deviceTable, devices), bpf.Mirror(routeTable, routes))
}

// RuleLimits returns how many rules of ports and of networks the tables hold.
func (m *Datapath) RuleLimits() (ports, networks int) {
	return int(m.maps(bpf.MeshMapMeshPorts).MaxEntries()), int(m.maps(bpf.MeshMapMeshNetworks).MaxEntries())
}

// SetNodeAddresses writes the node's own addresses, from which the kubelet probes.
func (m *Datapath) SetNodeAddresses(all []netip.Addr) error {
	wanted := map[bpf.SockAddress]uint32{}
	for _, a := range all {
		wanted[bpf.AddressFrom(a)] = 1
	}
	return bpf.Mirror(tableOf[bpf.SockAddress, uint32](m, bpf.MeshMapMeshNodeAddresses), wanted)
}

func (p *PodPolicy) row() bpf.MeshMeshPod {
	proxy := &p.Policy.Proxy
	row := bpf.MeshMeshPod{Cgroup: p.Cgroup}
	if proxy.UID != nil {
		row.ProxyUid = *proxy.UID
	}
	if proxy.GID != nil {
		row.ProxyGid = *proxy.GID
	}
	for _, f := range []struct {
		set  bool
		flag bpf.MeshMeshPodFlags
	}{
		{p.Policy.AllOutbound, bpf.MeshMeshPodFlagsMESH_ALL_OUTBOUND},
		{p.Policy.AllInbound, bpf.MeshMeshPodFlagsMESH_ALL_INBOUND},
		{p.Policy.DNS, bpf.MeshMeshPodFlagsMESH_DNS},
		{p.Policy.AllNameServers, bpf.MeshMeshPodFlagsMESH_DNS_ALL},
		{proxy.UID == nil, bpf.MeshMeshPodFlagsMESH_PROXY_ANY_USER},
		{proxy.GID == nil, bpf.MeshMeshPodFlagsMESH_PROXY_ANY_GROUP},
		{proxy.Cgroup != 0, bpf.MeshMeshPodFlagsMESH_PROXY_CGROUP},
		{!proxy.Known(), bpf.MeshMeshPodFlagsMESH_PROXY_UNKNOWN},
		{len(p.Policy.Devices.Rules) > 0, bpf.MeshMeshPodFlagsMESH_HAS_DEVICES},
		{p.Policy.Devices.BySource, bpf.MeshMeshPodFlagsMESH_ROUTES_BY_SOURCE},
	} {
		if f.set {
			row.Flags |= uint32(f.flag)
		}
	}
	return row
}

func (p *PodPolicy) addRules(ports map[bpf.MeshMeshPort]uint32, networks map[bpf.MeshMeshNetwork]uint32) {
	for direction, rules := range map[bpf.MeshMeshDirection]map[uint16]Rule{
		bpf.MeshMeshDirectionMESH_OUTBOUND: p.Policy.OutboundPorts, bpf.MeshMeshDirectionMESH_INBOUND: p.Policy.InboundPorts,
	} {
		for port, rule := range rules {
			ports[bpf.MeshMeshPort{Cgroup: p.Cgroup, Port: port, Direction: uint16(direction)}] = uint32(rule)
		}
	}
	for network, rule := range p.Policy.Networks {
		networks[bpf.MeshMeshNetwork{Prefixlen: podBits + mappedBits(network), Cgroup: p.cgroupWords(), Address: bpf.AddressFrom(network.Addr())}] = uint32(rule)
	}
}

func (p *PodPolicy) addDevices(devices map[bpf.MeshMeshDevice]uint32, routes map[bpf.MeshMeshRoute]uint32) {
	for index, rule := range p.Policy.Devices.Rules {
		devices[bpf.MeshMeshDevice{Cgroup: p.Cgroup, Index: index}] = uint32(rule)
	}
	for route, rule := range p.Policy.Devices.Routes {
		key := bpf.MeshMeshRoute{Prefixlen: podBits + 128 + mappedBits(route.To), Cgroup: p.cgroupWords(), Destination: bpf.AddressFrom(route.To.Addr())}
		if route.Source.IsValid() {
			key.Source = bpf.AddressFrom(route.Source)
		}
		routes[key] = uint32(rule)
	}
}

// podBits is the number of bits before the addresses in a key of mesh_networks and mesh_routes.
const podBits = 64

func (p *PodPolicy) cgroupWords() [2]uint32 {
	return [2]uint32{uint32(p.Cgroup), uint32(p.Cgroup >> 32)}
}

// mappedBits is the length of a network in tables that have IPv4 addresses as IPv4-mapped ones.
func mappedBits(network netip.Prefix) uint32 {
	if network.Addr().Is4() {
		return 96 + uint32(network.Bits())
	}
	return uint32(network.Bits())
}

// Loops counts, by the cookie of the network namespace, the connections of pods' proxies that would have come back
// to them, and were refused since an age.
func (m *Datapath) Loops(since time.Duration) (map[uint64]uint64, error) {
	all, err := tableOf[uint64, bpf.MeshMeshLoopCount](m, bpf.MeshMapMeshLoops).All()
	counts, now := map[uint64]uint64{}, kernelclock.Now()
	for netns, loops := range all {
		if loops.Last+uint64(since) > now {
			counts[netns] = loops.Count
		}
	}
	return counts, err
}
