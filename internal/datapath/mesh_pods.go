// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net/netip"
)

// A MeshRule says what a port or a network means for connections of a pod.
type MeshRule = MeshMeshRule

// The rules.
const (
	MeshExclude = MeshMeshRuleMESH_EXCLUDE
	MeshInclude = MeshMeshRuleMESH_INCLUDE
	// MeshProbe excludes what comes from an address of the node, and MeshProbeIncluded includes all else.
	MeshProbe         = MeshMeshRuleMESH_PROBE
	MeshProbeIncluded = MeshMeshRuleMESH_PROBE_INCLUDED
)

// A MeshPolicy says which connections of a pod go to its proxy.
type MeshPolicy struct {
	// A process with one of these is the proxy.
	ProxyUID, ProxyGID uint32
	// AllOutbound and AllInbound: what no rule names goes to the proxy. Else only what is included.
	AllOutbound, AllInbound bool
	// DNS: the proxy answers it.
	DNS                         bool
	OutboundPorts, InboundPorts map[uint16]MeshRule
	Networks                    map[netip.Prefix]MeshRule
}

// A MeshPodPolicy is the policy of a pod with this cgroup; Namespace is the cookie of its network namespace, 0 if it is
// not known yet.
type MeshPodPolicy struct {
	Cgroup, Namespace uint64
	Policy            *MeshPolicy
}

// SetMeshPods writes the policies of all pods to the tables. The component must be enabled.
//
// Rows of ports and networks are added before, and removed after, those that refer to them.
func (d *Datapath) SetMeshPods(all []MeshPodPolicy) error {
	pods, ports, networks := map[MeshMeshPodKey]MeshMeshPod{}, map[MeshMeshPort]uint32{}, map[MeshMeshNetwork]uint32{}
	for _, p := range all {
		pod := p.row()
		pods[MeshMeshPodKey{Id: p.Cgroup, Kind: uint32(MeshMeshPodKindMESH_BY_CGROUP)}] = pod
		if p.Namespace != 0 {
			pods[MeshMeshPodKey{Id: p.Namespace, Kind: uint32(MeshMeshPodKindMESH_BY_NETNS)}] = pod
		}
		p.addRules(ports, networks)
	}
	portTable := kernelHash[MeshMeshPort, uint32]{MeshMapMeshPorts, d.maps[MeshMapMeshPorts]}
	networkTable := kernelHash[MeshMeshNetwork, uint32]{MeshMapMeshNetworks, d.maps[MeshMapMeshNetworks]}
	err := errors.Join(addContents(portTable, ports), addContents(networkTable, networks))
	if err != nil {
		return err
	}
	podTable := kernelHash[MeshMeshPodKey, MeshMeshPod]{MeshMapMeshPods, d.maps[MeshMapMeshPods]}
	return errors.Join(setContents(podTable, pods), setContents(portTable, ports), setContents(networkTable, networks))
}

// SetMeshNodeAddresses writes the node's own addresses, from which the kubelet probes.
func (d *Datapath) SetMeshNodeAddresses(all []netip.Addr) error {
	wanted := map[SockAddress]uint32{}
	for _, a := range all {
		wanted[AddressFrom(a)] = 1
	}
	return setContents(kernelHash[SockAddress, uint32]{MeshMapMeshNodeAddresses, d.maps[MeshMapMeshNodeAddresses]}, wanted)
}

func (p *MeshPodPolicy) row() MeshMeshPod {
	row := MeshMeshPod{Cgroup: p.Cgroup, ProxyUid: p.Policy.ProxyUID, ProxyGid: p.Policy.ProxyGID}
	for _, f := range []struct {
		set  bool
		flag MeshMeshPodFlags
	}{
		{p.Policy.AllOutbound, MeshMeshPodFlagsMESH_ALL_OUTBOUND},
		{p.Policy.AllInbound, MeshMeshPodFlagsMESH_ALL_INBOUND},
		{p.Policy.DNS, MeshMeshPodFlagsMESH_DNS},
	} {
		if f.set {
			row.Flags |= uint32(f.flag)
		}
	}
	return row
}

func (p *MeshPodPolicy) addRules(ports map[MeshMeshPort]uint32, networks map[MeshMeshNetwork]uint32) {
	for direction, rules := range map[MeshMeshDirection]map[uint16]MeshRule{
		MeshMeshDirectionMESH_OUTBOUND: p.Policy.OutboundPorts, MeshMeshDirectionMESH_INBOUND: p.Policy.InboundPorts,
	} {
		for port, rule := range rules {
			ports[MeshMeshPort{Cgroup: p.Cgroup, Port: port, Direction: uint16(direction)}] = uint32(rule)
		}
	}
	for network, rule := range p.Policy.Networks {
		key := MeshMeshNetwork{Prefixlen: meshNetworkPod + uint32(network.Bits()), Cgroup: [2]uint32{uint32(p.Cgroup), uint32(p.Cgroup >> 32)}}
		key.Address.Bytes = network.Addr().As16()
		if network.Addr().Is4() {
			key.Prefixlen += 96
		}
		networks[key] = uint32(rule)
	}
}

// meshNetworkPod is the number of bits before the address in a key of mesh_networks.
const meshNetworkPod = 64

// setContents adds what is missing in a table, and then deletes what is too much.
func setContents[K, V comparable](table Hash[K, V], wanted map[K]V) error {
	if err := addContents(table, wanted); err != nil {
		return err
	}
	have, err := table.All()
	for k := range have {
		if _, keep := wanted[k]; !keep {
			err = errors.Join(err, table.Delete(k))
		}
	}
	return err
}

func addContents[K, V comparable](table Hash[K, V], wanted map[K]V) error {
	have, err := table.All()
	if err != nil {
		return err
	}
	for k, v := range wanted {
		if old, there := have[k]; there && old == v {
			continue
		}
		if err := table.Put(k, v); err != nil {
			return err
		}
	}
	return nil
}
