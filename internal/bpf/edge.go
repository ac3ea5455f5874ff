// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
)

// Names of the edge's structures.
type (
	// EdgeDevice are the node's addresses on a device.
	EdgeDevice = EdgeTCEdgeDevice
	// NextHopKey is a device and an IPv4 network.
	NextHopKey = EdgeTCNextHopKey
	// XFRMPolicies are the packets that XFRM policies concern, XFRMPair those of one policy.
	XFRMPolicies = EdgeTCXfrmPairs
	XFRMPair     = EdgeTCXfrmPair
	// Routing tells what route look-ups need.
	Routing = EdgeTCRouting
	// RouteKey and RouteEncap: rows of route_mtus and route_encaps, for routes about which a look-up does not tell
	// everything.
	RouteKey   = EdgeTCRouteKey
	RouteEncap = EdgeTCRouteEncap
)

// Flags of Routing.
const (
	RoutedBySource   = uint32(EdgeTCRoutingFlagROUTED_BY_SOURCE)
	RoutedByPorts    = uint32(EdgeTCRoutingFlagROUTED_BY_PORTS)
	RoutedByTOS      = uint32(EdgeTCRoutingFlagROUTED_BY_TOS)
	RoutedByMark     = uint32(EdgeTCRoutingFlagROUTED_BY_MARK)
	RouteMTUsMissing = uint32(EdgeTCRoutingFlagROUTE_MTUS_MISSING)
	RouteIgnoresPMTU = uint32(EdgeTCRoutingFlagROUTE_IGNORES_PMTU)
)

// RouteKeyBits is the prefix length of a RouteKey without a network.
const RouteKeyBits = 32*3 + 128

// Flags of EdgeDevice.Sources: how the kernel validates the source of IPv4 packets that arrive by a device.
const (
	SourcesStrict    = uint8(EdgeTCSourceValidationSOURCES_STRICT)
	SourcesLoose     = uint8(EdgeTCSourceValidationSOURCES_LOOSE)
	SourcesMultipath = uint8(EdgeTCSourceValidationSOURCES_MULTIPATH)
	SourcesAllRouted = uint8(EdgeTCSourceValidationSOURCES_ALL_ROUTED)
)

// EdgeOptions configure the edge.
type EdgeOptions struct {
	// SNATPorts are one or two ranges of SNAT ports.
	SNATPorts []PortRange
	// ICMPRate is how many ICMP errors each CPU sends per second, 0 for no limit; nil: the programs'
	// default of 1000.
	ICMPRate *uint32
	// Timeouts of conntrack entries; nil: the programs' defaults.
	Timeouts *ConntrackTimeouts
	// AcceptDSR accepts packets that balancers have encapsulated for backends of this node (table
	// Balancers), as far as UntrackedEnds.Accepted allows.
	AcceptDSR bool
	// LateXDP loads the XDP program when the first device needs it: verifying it takes time.
	LateXDP bool
}

// lateEdgeObject reads the object of a program that is loaded when the first device needs it: those of devices without
// MAC addresses, and that of XDP (EdgeOptions.LateXDP).
func lateEdgeObject(program string) (*ebpf.CollectionSpec, error) {
	if program == EdgeXDPProgBeelineEdgeXdp {
		return LoadEdgeXDP()
	}
	return LoadEdgeL3()
}

// EdgeKernel is the datapath with the edge's tables and programs.
type EdgeKernel struct {
	*Datapath
	// dispatcher: a device's XDP program is put into a dispatcher of libxdp's protocol even if it is the only one,
	// so that others can join.
	dispatcher bool
	// replacement returns an error if XDP programs cannot share a device under this kernel.
	replacement func() error
}

// NewEdgeKernel returns a datapath with the edge. dispatcher puts XDP programs into dispatchers that they are alone in.
func NewEdgeKernel(d *Datapath, dispatcher bool) EdgeKernel {
	return EdgeKernel{d, dispatcher, HaveReplacement}
}

func edgeTable[K comparable, V any](d EdgeKernel, name string) Hash[K, V] {
	return NewHash[K, V](Declared(edgeTables, name), d.Map(name))
}

// EdgeDevices returns the table of devices by their index.
func (d EdgeKernel) EdgeDevices() Hash[uint32, EdgeDevice] {
	return edgeTable[uint32, EdgeDevice](d, EdgeTCMapEdgeDevices)
}

// NextHops returns a table with, per device and network (the longest prefix wins), 1 if the device is one of several
// next hops.
func (d EdgeKernel) NextHops() Hash[NextHopKey, uint32] {
	return edgeTable[NextHopKey, uint32](d, EdgeTCMapNextHops)
}

// NextHopKeyOf returns the key of a device and an IPv4 network.
func NextHopKeyOf(device int, network netip.Prefix) NextHopKey {
	const deviceBits = 32
	address := network.Masked().Addr().As4()
	return NextHopKey{Prefixlen: uint32(deviceBits + network.Bits()), Device: uint32(device), Address: binary.NativeEndian.Uint32(address[:])}
}

// SetXFRMPolicies has the programs ask for XFRM policies.
func (d EdgeKernel) SetXFRMPolicies(p XFRMPolicies) error {
	none := uint32(0)
	if p.Count == 0 {
		none = 1
	}
	for name, value := range map[string]any{EdgeTCMapXfrmPolicies: p, EdgeTCMapXfrmNone: none} {
		if err := d.Map(name).Put(uint32(0), value); err != nil {
			return fmt.Errorf("write table %s: %w", name, err)
		}
	}
	return nil
}

// Routings returns the table whose entry 0 tells what route look-ups need.
func (d EdgeKernel) Routings() Hash[uint32, Routing] {
	return edgeTable[uint32, Routing](d, EdgeTCMapRoutings)
}

// RouteMTUs returns the table of the MTUs that routes have.
func (d EdgeKernel) RouteMTUs() Hash[RouteKey, uint32] {
	return edgeTable[RouteKey, uint32](d, EdgeTCMapRouteMtus)
}

// RouteEncaps returns the table of routes with an outer header.
func (d EdgeKernel) RouteEncaps() Hash[NetworkKey, RouteEncap] {
	return edgeTable[NetworkKey, RouteEncap](d, EdgeTCMapRouteEncaps)
}
