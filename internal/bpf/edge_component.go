// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf/settable"
)

// Edge is the edge, enabled if there are options.
func Edge(options func() *EdgeOptions) *Component {
	enabled := func() bool { return options() != nil }
	return &Component{
		Name: edgeName, Objects: func(*Datapath) ([]*ebpf.CollectionSpec, error) { return edgeObjects(options()) },
		Tables: edgeTables, Constants: edgeConstants(options),
		DeviceHooks: edgeHooks, LateObject: lateEdgeObject, FilterPriority: filterPriority,
		Conntrack: enabled, Handover: edgeHandover(),
		Attached: attachedInDispatchers, Replace: replaceInDispatchers, Detach: leaveDispatchers,
	}
}

// filterPriority is that of the edge at tc: it precedes the other components.
const filterPriority = 190

// edgeObjects returns the edge's objects: tc first, which has all of its tables.
func edgeObjects(options *EdgeOptions) ([]*ebpf.CollectionSpec, error) {
	if options == nil {
		return nil, nil
	}
	tc, err := LoadEdgeTC()
	if err != nil || options.LateXDP {
		return []*ebpf.CollectionSpec{tc}, err
	}
	xdp, err := LoadEdgeXDP()
	return []*ebpf.CollectionSpec{tc, xdp}, err
}

// The edge's tables, except those of the XDP dispatcher, which is libxdp's protocol.
var edgeTables = []Table{
	{Name: EdgeTCMapEdgeDevices, Kind: ConfigTable, Fixed: deviceLimit, Copy: CopyEntries},
	{Name: EdgeTCMapNextHops, Kind: ConfigTable, Fixed: nextHopLimit, Copy: CopyEntries, Remedy: "set rp_filter to 2: IPv4 has too many routes with several next hops"},
	{Name: EdgeTCMapXfrmPolicies, Kind: ConfigTable, Fixed: 1, Copy: CopyEntries},
	{Name: EdgeTCMapXfrmNone, Kind: ConfigTable, Copy: StartEmpty},
	{Name: EdgeTCMapRoutings, Kind: ConfigTable, Fixed: 1, Copy: StartEmpty},
	{Name: EdgeTCMapRouteMtus, Kind: ConfigTable, Fixed: routeLimit, Copy: CopyEntries},
	{Name: EdgeTCMapRouteEncaps, Kind: ConfigTable, Fixed: routeLimit, Copy: CopyEntries},
	{Name: EdgeTCMapBalancers, Kind: ConfigTable, Fixed: NetworkLimit, Copy: CopyEntries,
		Remedy: "set --dsr-balancers to the nodes' networks, which cover the addresses inside"},
	{Name: EdgeTCMapKernelRoom, Kind: ConfigTable, Copy: StartEmpty},
	// An agent that starts clears the next three: NewEvents the first, NewDSRChecks the others.
	{Name: EdgeTCMapEdgeWatched, Kind: ConfigTable, Copy: StartEmpty},
	{Name: EdgeTCMapDsrChecks, Kind: ConfigTable, Copy: StartEmpty},
	{Name: EdgeTCMapDsrChecksOn, Kind: ConfigTable, Copy: StartEmpty},
	{Name: EdgeTCMapDsrCheckReplies, Kind: StateTable, Copy: StartEmpty, Before9: "dsr_check_answers"},
	{Name: EdgeTCMapConntrack, Kind: StateTable, Limit: &LimitFlows, Entries: assuredSets, Copy: StartEmpty, Follow: followConntrack, Before9: "tracks"},
	{Name: EdgeTCMapConntrackTags, Kind: StateTable, Limit: &LimitFlows, Entries: assuredSets, Copy: StartEmpty, Follow: withConntrack, Before9: "tracks_tags"},
	{Name: EdgeTCMapUnreplied, Kind: StateTable, Limit: &LimitFlows, Entries: halfOpenSets, Copy: StartEmpty, Follow: withConntrack, Before9: "half_open"},
	{Name: EdgeTCMapUnrepliedTags, Kind: StateTable, Limit: &LimitFlows, Entries: halfOpenSets, Copy: StartEmpty, Follow: withConntrack, Before9: "half_open_tags"},
	// An entry is used for milliseconds.
	{Name: EdgeTCMapFragments, Kind: StateTable, Limit: &LimitFlows, Entries: fragmentsFor, Copy: StartEmpty},
	{Name: EdgeTCMapOuterPaths, Kind: StateTable, Copy: StartEmpty, Follow: FollowEntries(EdgeTCMapOuterPaths)},
	{Name: EdgeTCMapEdgeEvents, Kind: StateTable, Copy: StartEmpty},
	{Name: EdgeTCMapEdgeCounts, Kind: CounterTable, Copy: StartEmpty},
	{Name: EdgeTCMapBackendLosses, Kind: CounterTable, Copy: StartEmpty},
	{Name: EdgeTCMapPolicyDrops, Kind: CounterTable, Copy: StartEmpty},
	{Name: EdgeTCMapServiceCounts, Kind: CounterTable, Limit: &LimitServices, Copy: StartEmpty, ByService: true},
	{Name: EdgeTCMapServiceUntracked, Kind: CounterTable, Copy: StartEmpty, Before9: "service_sent", ByService: true},
	// Written by the agent, which reads it back: not a counter of programs.
	{Name: EdgeTCMapServiceCollected, Kind: ConfigTable, Limit: &LimitServices, Copy: CopyEntries, Before9: "service_gone", ByService: true},

	{Name: EdgeTCMapMigration, Kind: ConfigTable, Fixed: 1, Copy: StartEmpty},
	{Name: EdgeTCMapPredecessors, Kind: ConfigTable, Copy: StartEmpty},

	{Name: EdgeTCMapScratch, Kind: ScratchTable},
	{Name: EdgeTCMapReplyBuffers, Kind: ScratchTable},
	{Name: EdgeTCMapQuotes, Kind: ScratchTable},
	{Name: EdgeTCMapExplanations, Kind: ScratchTable},
	{Name: EdgeTCMapFibCache, Kind: ScratchTable},
	{Name: EdgeTCMapFrontendCache, Kind: ScratchTable},
	{Name: EdgeTCMapIcmpBuckets, Kind: ScratchTable},
}

// Sizes without a flag.
const (
	deviceLimit  = 4096
	nextHopLimit = 32768 // networks of routes with several next hops, for each of their devices
	routeLimit   = 65536 // with an MTU of their own, or an outer header
	minFragments = 8192
)

// assuredSets returns the number of sets for entries of assured flows. They have places for twice as many
// entries: sets fill at random, and while they are half full on average, hardly one in a million entries
// finds no place.
func assuredSets(flows uint32) uint32 { return conntrackSets(2 * flows) }

// minHalfOpen is the minimum number of entries for flows that are not assured: with two for each flow,
// those that a flood of 300,000 flows per second begins in 100 ms.
const minHalfOpen = 65536

// halfOpenSets returns the number of sets for entries of flows that are not assured.
func halfOpenSets(flows uint32) uint32 { return conntrackSets(max(flows/2, minHalfOpen)) }

// fragmentsFor returns the number of fragmented datagrams that are tracked: one for eight conntrack
// entries. An entry is needed from the first fragment of a datagram to its last one, mostly for some
// milliseconds. If some are lost it stays until it is evicted: 32,768 entries last for 6 seconds at
// 5,000 such datagrams per second.
func fragmentsFor(flows uint32) uint32 { return max(flows/8, minFragments) }

// conntrackSets returns how many sets hold the given number of entries.
func conntrackSets(entries uint32) uint32 {
	return max((entries+uint32(settable.Places)-1)/uint32(settable.Places), 1)
}

// edgeConstants are the `const volatile` variables of the edge's objects, and those of all objects that tell them about
// the edge. Without an edge the values in the objects stay.
func edgeConstants(options func() *EdgeOptions) map[string]ConstantValue {
	ofEdge := func(value func(*EdgeOptions) any) ConstantValue {
		return func(*Datapath) (any, error) {
			if o := options(); o != nil {
				return value(o), nil
			}
			return nil, nil
		}
	}
	return map[string]ConstantValue{
		SockVarEdgeServes:      ofEdge(func(*EdgeOptions) any { return uint8(1) }),
		SockVarSnatFirst:       ofEdge(func(o *EdgeOptions) any { first, _ := o.snatRanges(); return first }),
		SockVarSnatCount:       ofEdge(func(o *EdgeOptions) any { _, count := o.snatRanges(); return count }),
		EdgeTCVarConntrackSets: EntriesOf(EdgeTCMapConntrack),
		EdgeTCVarUnrepliedSets: EntriesOf(EdgeTCMapUnreplied),
		EdgeTCVarCtTimeouts: ofEdge(func(o *EdgeOptions) any {
			if o.Timeouts == nil {
				return nil
			}
			return *o.Timeouts
		}),
		EdgeTCVarIcmpPerSecond: ofEdge(func(o *EdgeOptions) any {
			if o.ICMPRate == nil {
				return nil
			}
			return *o.ICMPRate
		}),
		EdgeTCVarIcmpBurst:       ObjectValue,
		EdgeTCVarDsrAccept:       ofEdge(func(o *EdgeOptions) any { return Flag(o.AcceptDSR) }),
		EdgeTCVarHasPredecessor:  func(d *Datapath) (any, error) { return Flag(d.HasPredecessor()), nil },
		EdgeTCVarPseudoHeaderV6:  func(*Datapath) (any, error) { return PseudoHeaderV6(), nil },
		EdgeTCVarKernelEntries:   func(*Datapath) (any, error) { return KernelEntries(), nil },
		EdgeTCVarKernelConntrack: func(*Datapath) (any, error) { return KernelConntrack(), nil },
	}
}

// snatRanges returns the first port and the length of each range; an unused second range has length 0.
func (o *EdgeOptions) snatRanges() (first, count [2]uint16) {
	for i, r := range o.SNATPorts {
		first[i], count[i] = r.First, r.Last-r.First+1
	}
	return first, count
}
