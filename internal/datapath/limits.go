// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Limits are the numbers of entries that the tables can hold. Zero takes the
// default. The comment is what one entry costs in kernel memory; tables marked
// "on use" cost that only for entries that exist.
type Limits struct {
	Frontends    uint32 // addresses and ports that clients ask for: 72 bytes, and about 100 on use
	Backends     uint32 // distinct endpoints: 32 bytes
	Slots        uint32 // members of all backend sets together, by weight: 8 bytes
	Services     uint32 // service ports: about 550 bytes on use, and 60 for each CPU (256 KiB for each are taken in any case)
	SourceRanges uint32 // loadBalancerSourceRanges of all services: about 80 bytes on use
	Affinity     uint32 // clients remembered by session affinity: about 60 bytes
	Flows        uint32 // conntrack entries of assured flows, two for each: 282 bytes; and half as many, at least 65,536, of the others; and 15 for datagrams in fragments
}

// DefaultLimits hold a large cluster: 34 MiB of kernel memory and what is used. Slots have room for
// 126 Maglev tables of the default size, of 16,640 slots each: 40 ports of both families, and as many
// tables again for half of them, which changes need.
var DefaultLimits = Limits{
	Frontends:    65536,
	Backends:     262144,
	Slots:        2097152,
	Services:     65536,
	SourceRanges: 65536,
	Affinity:     65536,
	Flows:        flowsFor(memory()),
}

// What nobody sets. An entry costs 16 bytes, and about 80 on use.
const (
	networkLimit      = 32768 // ServiceCIDRs, and the podCIDRs of all Nodes; and balancers
	reservedPortLimit = 32768 // all NodePorts, of each protocol and family
	optedOutLimit     = 4096
	doomedLimit       = 8192
	edgeDeviceLimit   = 4096
	fewestFragments   = 8192
)

const (
	mostFlows     = 262144
	fewestFlows   = 16384
	bytesForFlow  = 352
	flowsOfMemory = 128 // a part in so many of the machine's memory
)

// flowsFor is the default of Flows on a machine with so many bytes of memory.
func flowsFor(memory uint64) uint32 {
	return uint32(min(max(memory/flowsOfMemory/bytesForFlow, fewestFlows), mostFlows))
}

// memory of the machine in bytes; unknown is as if there were enough.
func memory() uint64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 1 << 40
	}
	return uint64(info.Totalram) * uint64(info.Unit)
}

// WithDefaults replaces zeros.
func (l Limits) WithDefaults() Limits {
	for _, f := range []struct{ value, def *uint32 }{
		{&l.Frontends, &DefaultLimits.Frontends},
		{&l.Backends, &DefaultLimits.Backends},
		{&l.Slots, &DefaultLimits.Slots},
		{&l.Services, &DefaultLimits.Services},
		{&l.SourceRanges, &DefaultLimits.SourceRanges},
		{&l.Affinity, &DefaultLimits.Affinity},
		{&l.Flows, &DefaultLimits.Flows},
	} {
		if *f.value == 0 {
			*f.value = *f.def
		}
	}
	return l
}

// entries is what each table is created with. Rows are more than frontends,
// since an update fills a new row before it gives up the old one. Row and
// backend 0 are never used.
func (l Limits) entries() map[string]uint32 {
	return map[string]uint32{
		SockMapFrontends:    l.Frontends,
		SockMapFrontendRows: l.Frontends + l.Frontends/8 + 64,
		SockMapSlots:        l.Slots,
		SockMapBackends:     l.Backends + 1,
		SockMapServices:     l.Services,
		SockMapSourceRanges: l.SourceRanges,
		SockMapNetworks:     networkLimit,
		SockMapAffinity:     affinitySets(l.Affinity),
		SockMapTableSecret:  1,

		SockMapUntrackedFrontends: 1,

		SockMapReservedPorts: reservedPortLimit,
		SockMapOptedOut:      optedOutLimit,
		SockMapDoomed:        doomedLimit,
	}
}

// edgeEntries is entries for the edge's tables.
func (l Limits) edgeEntries() map[string]uint32 {
	return map[string]uint32{
		EdgeTCMapTracks:      tracksSets(l.Flows),
		EdgeTCMapHalfOpen:    halfOpenSets(l.Flows),
		EdgeTCMapFragments:   fragmentsFor(l.Flows),
		EdgeTCMapEdgeDevices: edgeDeviceLimit,
		EdgeTCMapBalancers:   networkLimit,
		EdgeTCMapDoors:       1,

		EdgeTCMapServiceCounts: l.Services,
		EdgeTCMapServiceGone:   l.Services,
	}
}

// tracksSets is how many sets there are of entries of assured flows: with places for twice as many. Sets
// fill by chance, and of those that are half full on average hardly one in a million entries finds no place.
func tracksSets(flows uint32) uint32 { return conntrackSets(2 * flows) }

// fewestHalfOpen are the entries of flows that are not assured, however few others there are: with two for
// each flow, those that begin in 100 ms of a flood of 300,000 a second.
const fewestHalfOpen = 65536

// halfOpenSets is how many sets there are of entries of flows that are not assured.
func halfOpenSets(flows uint32) uint32 { return conntrackSets(max(flows/2, fewestHalfOpen)) }

// fragmentsFor is how many datagrams are remembered that come in fragments: one for eight records
// of flows. An entry is needed from the first fragment of a datagram to its last one, mostly for
// some milliseconds. It is kept for as long as the table lasts: 32,768 entries do for 6 seconds
// of 5,000 datagrams each.
func fragmentsFor(flows uint32) uint32 { return max(flows/8, fewestFragments) }

// limitFlags names the flag that makes a table larger.
var limitFlags = map[string]string{
	SockMapFrontends:    "max-frontends",
	SockMapFrontendRows: "max-frontends",
	SockMapSlots:        "max-slots",
	SockMapBackends:     "max-backends",
	SockMapServices:     "max-services",
	SockMapSourceRanges: "max-source-ranges",
	SockMapAffinity:     "max-affinity",
	EdgeTCMapTracks:     "max-flows",
	EdgeTCMapHalfOpen:   "max-flows",
	EdgeTCMapFragments:  "max-flows",

	EdgeTCMapServiceGone: "max-services",
}

// LimitFlag is the name of the flag that makes a table larger; empty: there is none.
func LimitFlag(table string) string { return limitFlags[table] }

// FullError says which table has no room, and the flag to raise.
type FullError struct {
	Table string
	Limit uint32
}

func (e *FullError) Error() string {
	s := fmt.Sprintf("table %s is full at %d entries", e.Table, e.Limit)
	if flag := limitFlags[e.Table]; flag != "" {
		s += fmt.Sprintf(": raise --%s and restart the agent", flag)
	} else if e.Table == EdgeTCMapBalancers {
		s += ": let --dsr-balancers name the nodes' networks, which stand for the addresses inside"
	}
	return s
}

// NewFullError is for a table that ran out of room before the kernel said so.
func NewFullError(table string, limit uint32) *FullError { return &FullError{table, limit} }

// leastFlows are a few sets: in fewer flows push one another out.
const leastFlows = 64

// Check refuses sizes that the kernel would refuse, that serve nobody, or that nobody
// means.
func (l Limits) Check() error {
	const most = 1 << 26 // entries; the largest table is then 4 GiB
	if l.Flows < leastFlows || l.Flows > most {
		return fmt.Errorf("--max-flows %d: between %d and %d; a flow has two, and with fewer flows push one another out", l.Flows, leastFlows, most)
	}
	for flag, n := range map[string]uint32{
		"max-frontends": l.Frontends, "max-backends": l.Backends, "max-slots": l.Slots,
		"max-services": l.Services, "max-source-ranges": l.SourceRanges, "max-affinity": l.Affinity,
	} {
		if n == 0 || n > most {
			return fmt.Errorf("--%s %d: between 1 and %d", flag, n, most)
		}
	}
	return nil
}
