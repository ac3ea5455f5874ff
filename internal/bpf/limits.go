// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Limits are the maximum numbers of entries of the tables. Zero means the default. The comments give the
// kernel memory per entry; "on use" is needed only for existing entries.
type Limits struct {
	Frontends    uint32 // addresses and ports of Services: 144 bytes, and about 100 on use
	Backends     uint32 // distinct endpoints: 64 bytes
	Slots        uint32 // members of all backend sets together, by weight: 8 bytes
	Services     uint32 // service ports: about 550 bytes on use, and 60 for each CPU (at least 256 KiB for each CPU in any case)
	SourceRanges uint32 // loadBalancerSourceRanges of all services: about 80 bytes on use
	Affinity     uint32 // clients remembered by session affinity: about 60 bytes
	Flows        uint32 // conntrack entries of assured flows, two for each: 282 bytes; half as many, at least 65,536, of other flows; and 15 bytes for fragmented datagrams
	OffloadFlows uint32 // entries of the flow cache, two for each flow: 295 bytes
}

// A Limit is one of the Limits with its flag.
type Limit struct {
	Flag  string
	Usage string
	// DefaultText replaces the number where defaults are printed.
	DefaultText string
	// In returns the limit's field.
	In func(*Limits) *uint32

	min uint32
	why string // why min is the minimum
}

var (
	limitFrontends = Limit{Flag: "max-frontends", Usage: "maximum number of frontends (addresses and ports of Services) in the tables",
		In: func(l *Limits) *uint32 { return &l.Frontends }, min: 1}
	limitBackends = Limit{Flag: "max-backends", Usage: "maximum number of distinct endpoints in the tables",
		In: func(l *Limits) *uint32 { return &l.Backends }, min: 1}
	limitSlots = Limit{Flag: "max-slots", Usage: "maximum number of members of all backend sets together, counted by weight",
		In: func(l *Limits) *uint32 { return &l.Slots }, min: 1}
	LimitServices = Limit{Flag: "max-services", Usage: "maximum number of service ports in the tables",
		In: func(l *Limits) *uint32 { return &l.Services }, min: 1}
	limitSourceRanges = Limit{Flag: "max-source-ranges", Usage: "maximum number of loadBalancerSourceRanges in the tables",
		In: func(l *Limits) *uint32 { return &l.SourceRanges }, min: 1}
	limitAffinity = Limit{Flag: "max-affinity", Usage: "maximum number of session affinity entries; entries of clients that came only once are evicted first",
		In: func(l *Limits) *uint32 { return &l.Affinity }, min: 1}
	LimitFlows = Limit{Flag: "max-flows", Usage: "maximum number of conntrack entries of clients' flows, two for each flow; where there is no room, entries of the Service that has most are evicted",
		DefaultText: "by the machine's memory",
		In:          func(l *Limits) *uint32 { return &l.Flows }, min: minFlows, why: "; a flow has two, and with fewer entries flows evict each other"}
	// LimitOffloadFlows is exported for flow offload.
	LimitOffloadFlows = Limit{Flag: "offload-max-flows", Usage: "maximum number of entries of the flow cache, two for each flow; flows for which there is no room take the stack",
		In: func(l *Limits) *uint32 { return &l.OffloadFlows }, min: minFlows, why: "; a flow has two"}
)

// AllLimits are the limits with a flag.
var AllLimits = []Limit{limitFrontends, limitBackends, limitSlots, LimitServices, limitSourceRanges, limitAffinity, LimitFlows, LimitOffloadFlows}

// DefaultLimits suit a large cluster: 45 MiB of kernel memory, and what is needed on use. Slots hold 126
// Maglev tables of the default size, of 16,640 slots each: 40 ports of both families, and as many tables
// again for half of them, which changes need.
var DefaultLimits = Limits{
	Frontends:    65536,
	Backends:     262144,
	Slots:        2097152,
	Services:     65536,
	SourceRanges: 65536,
	Affinity:     65536,
	Flows:        flowsFor(memory()),
	OffloadFlows: 65536,
}

// Sizes without a flag. An entry costs 16 bytes, and about 80 on use.
const (
	NetworkLimit        = 32768 // ServiceCIDRs, and the podCIDRs of all Nodes; and balancers
	reservedPortLimit   = 32768 // all NodePorts, of each protocol and family
	optedOutLimit       = 4096
	socketsToAbortLimit = 8192
)

const (
	maxFlows        = 262144
	minDefaultFlows = 16384
	bytesForFlow    = 352
	flowsOfMemory   = 128 // 1/128 of the machine's memory
)

// flowsFor returns the default of Flows on a machine with this many bytes of memory.
func flowsFor(memory uint64) uint32 {
	return uint32(min(max(memory/flowsOfMemory/bytesForFlow, minDefaultFlows), maxFlows))
}

// memory returns the size of the machine's memory in bytes. If it is unknown, the default of Flows is the
// largest one.
func memory() uint64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 1 << 40
	}
	return uint64(info.Totalram) * uint64(info.Unit)
}

// WithDefaults replaces zeros with the defaults.
func (l Limits) WithDefaults() Limits {
	for _, limit := range AllLimits {
		if n := limit.In(&l); *n == 0 {
			*n = *limit.In(&DefaultLimits)
		}
	}
	return l
}

// rowsFor returns the number of frontend rows: more than frontends, because an update fills a new row
// before it releases the old one. Row 0 is never used.
func rowsFor(frontends uint32) uint32 { return frontends + frontends/8 + 64 }

// backendRows returns the number of rows for backends. Backend 0 is never used.
func backendRows(backends uint32) uint32 { return backends + 1 }

// ownTable returns the declaration of a table of the socket shortcut, nil if there is none.
func ownTable(name string) *Table { return componentList{Socket()}.table(name) }

// LimitFlag returns the name of the flag that sizes a table of Socket, "" if there is none.
func LimitFlag(table string) string {
	if t := ownTable(table); t != nil && t.Limit != nil {
		return t.Limit.Flag
	}
	return ""
}

// FullError means that a table is full. Its text names the table and the remedy.
type FullError struct {
	Table string
	Limit uint32 // entries

	declared *Table
}

func (e *FullError) Error() string {
	s := fmt.Sprintf("table %s is full at %d entries", e.Table, e.Limit)
	t := e.declared
	if t == nil {
		t = ownTable(e.Table)
	}
	switch {
	case t == nil:
		return s
	case t.Limit != nil:
		return s + fmt.Sprintf(": raise --%s and restart the agent", t.Limit.Flag)
	case t.Remedy != "":
		return s + ": " + t.Remedy
	}
	return s
}

// NewFullError makes a FullError for a table that the agent knows to be full without a call to the kernel.
func NewFullError(table string, limit uint32) *FullError {
	return &FullError{Table: table, Limit: limit}
}

// minFlows is a few sets: with fewer entries flows evict each other.
const minFlows = 64

// maxLimit is the largest limit in entries. The largest table then has 4 GiB.
const maxLimit = 1 << 26

// Check returns an error for limits that the kernel would refuse, or with which nothing could be served.
func (l Limits) Check() error {
	for _, limit := range AllLimits {
		if n := *limit.In(&l); n < limit.min || n > maxLimit {
			return fmt.Errorf("--%s %d: between %d and %d%s", limit.Flag, n, limit.min, maxLimit, limit.why)
		}
	}
	return nil
}
