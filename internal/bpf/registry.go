// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf/settable"
)

// TableKind tells who writes a BPF map and how long its contents last.
type TableKind uint8

const (
	// ConfigTable is written only by the agent. Programs read it.
	ConfigTable TableKind = iota
	// StateTable is written by programs: their knowledge of flows, clients, sockets and paths.
	StateTable
	// CounterTable has counters of programs. It starts from zero if its layout or size changes.
	CounterTable
	// ScratchTable is private memory of the programs of one object: scratch areas, caches, rate limits.
	// It is not pinned and starts empty with each load.
	ScratchTable
	// variableSection has the global variables of one object (constants.go). It is not pinned.
	variableSection
)

// A Table declares a BPF map of a component. Loading, pinning, resizing, repair, cleanup and the errors of full
// tables all read it.
type Table struct {
	Name string
	Kind TableKind
	// Limit sizes the table. Entries converts it into the number of map entries; nil: they are equal.
	Limit   *Limit
	Entries func(limit uint32) uint32
	// Fixed is the number of map entries of a table without a limit; 0: the one in the object.
	Fixed uint32
	// Copy fills a table of another size or layout from the pinned one, before programs use it. A
	// pinned table needs it unless it is socket storage, which has no size.
	Copy CopyRule
	// Follow copies what programs write to the table while they run (migrate.go). Copy is not used
	// then.
	Follow FollowRule
	// Init prepares the table before programs use it. It must not change a prepared table.
	Init func(*ebpf.Map) error
	// Remedy is the remedy for a full table without a limit.
	Remedy string
	// ByService: its keys are numbers of Services. What it has of a number is reset when a Service gets or leaves
	// it.
	ByService bool
	// Before9 is its name until version 8 of the layout, if that was another.
	Before9 string
}

var socketTables = []Table{
	{Name: SockMapFrontends, Kind: ConfigTable, Limit: &limitFrontends, Copy: CopyEntries},
	{Name: SockMapFrontendRows, Kind: ConfigTable, Limit: &limitFrontends, Entries: rowsFor, Copy: CopyArray},
	{Name: SockMapFrontendListRows, Kind: ConfigTable, Limit: &limitFrontends, Entries: rowsFor, Copy: CopyArray},
	{Name: SockMapSlots, Kind: ConfigTable, Limit: &limitSlots, Copy: CopyArray},
	{Name: SockMapBackends, Kind: ConfigTable, Limit: &limitBackends, Entries: backendRows, Copy: CopyArray},
	{Name: SockMapServices, Kind: ConfigTable, Limit: &LimitServices, Copy: CopyEntries},
	{Name: SockMapSourceRanges, Kind: ConfigTable, Limit: &limitSourceRanges, Copy: CopyEntries},
	{Name: SockMapNetworks, Kind: ConfigTable, Fixed: NetworkLimit, Copy: CopyEntries},
	{Name: SockMapUntrackedFrontends, Kind: ConfigTable, Fixed: 1, Copy: CopyArray},
	{Name: SockMapReservedPorts, Kind: ConfigTable, Fixed: reservedPortLimit, Copy: CopyEntries},
	{Name: SockMapOptedOut, Kind: ConfigTable, Fixed: optedOutLimit, Copy: CopyEntries},
	{Name: SockMapSocketsToAbort, Kind: ConfigTable, Fixed: socketsToAbortLimit, Copy: CopyEntries, Before9: "doomed"},
	{Name: SockMapTableSecret, Kind: ConfigTable, Fixed: 1, Copy: CopyArray, Init: settable.InitSecret},
	// Disabled until it is rebuilt: a copy would not have the bits of entries that programs insert after it.
	{Name: SockMapPrefilters, Kind: ConfigTable, Fixed: 1, Copy: StartEmpty, Before9: "doors"},
	{Name: SockMapAffinity, Kind: StateTable, Limit: &limitAffinity, Entries: affinitySets, Copy: StartEmpty, Follow: followAffinity},
	{Name: SockMapConnected, Kind: StateTable},
	{Name: SockMapTcpConnections, Kind: StateTable},
	{Name: SockMapConnectedPrev, Kind: StateTable, Before9: "connected_before"},
	{Name: SockMapUdpFlows, Kind: StateTable},
	{Name: SockMapUdpFlowsOverflow, Kind: StateTable, Before9: "more_udp_flows"},
	{Name: SockMapBindPending, Kind: StateTable, Before9: "unnamed_ports"},
	{Name: SockMapSocketCounts, Kind: CounterTable, Copy: StartEmpty},
	{Name: ConnectExplainMapConnectExplained, Kind: ScratchTable},
}

// pinned reports whether the map is shared by objects and outlives the agent.
func (t *Table) pinned() bool { return t.Kind != ScratchTable && t.Kind != variableSection }

// size returns the number of map entries under the limits; 0: the object's.
func (t *Table) size(l Limits) uint32 {
	if t.Limit == nil {
		return t.Fixed
	}
	if n := *t.Limit.In(&l); t.Entries == nil {
		return n
	} else {
		return t.Entries(n)
	}
}

// prepareMaps checks the maps of an object and sets their sizes.
func (d *Datapath) prepareMaps(spec *ebpf.CollectionSpec) error {
	if err := d.components.checkDeclared(spec); err != nil {
		return err
	}
	for name, s := range spec.Maps {
		if n := d.components.table(name).size(d.options.Limits); n != 0 {
			s.MaxEntries = n
		}
	}
	return nil
}

// Share sets the constants of an object, and returns the tables that replace its maps.
func (d *Datapath) Share(spec *ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	tables, err := d.sharedTables(spec)
	if err != nil {
		return nil, err
	}
	return tables, d.setConstants(spec)
}

// sharedTables returns the tables that replace the maps of an object, and sets the sizes of its maps. A
// pinned table that does not exist is an error: the object would use an empty one of its own.
func (d *Datapath) sharedTables(spec *ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	if err := d.components.checkDeclared(spec); err != nil {
		return nil, err
	}
	tables := map[string]*ebpf.Map{}
	for name, s := range spec.Maps {
		if !d.components.table(name).pinned() {
			continue
		}
		m := d.maps[name]
		if m == nil {
			return nil, fmt.Errorf("table %s of the BPF object does not exist: enable component %s, or load an object that has the table first",
				name, d.components.owner(name))
		}
		tables[name], s.MaxEntries = m, m.MaxEntries()
	}
	return tables, nil
}
