// SPDX-License-Identifier: Apache-2.0

// Package packet tests the edge's programs packet by packet, in test runs of the kernel (BPF_PROG_TEST_RUN) on
// a node made of devices, routes and neighbours: against bytes that gopacket makes, and against a model. The
// rules are those of docs/operate/semantics.md. -seed and -packets are TestModel's; FuzzEdge is a fuzz target.
package packet

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/bpf/settable"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/test/packet/model"
)

// world is the edge's programs over one set of tables, on a node of its own.
type world struct {
	*network
	programs             *programs
	xdp, ingress, egress *ebpf.Program
	maps                 map[string]*ebpf.Map
	limits               limits
	prefilter            *bpf.Prefilter
	attached             bool // to a device, where the kernel's own packets arrive, too
	l3                   bool // ingress and egress are the programs for devices without MAC addresses
}

// limits are the sizes and rates of a world. 0 stands for the default.
type limits struct {
	ports  [2][2]uint16 // first, count: of SNAT
	tracks uint32       // entries, of half-open flows and of others
	// timeouts in ticks, by enum ct_timeout.
	timeouts []uint32
	// sets of `affinity`
	affinitySets uint32
	// ICMP errors, per CPU: a second, and at once; 0: as many as there are.
	icmpRate, icmpBurst uint32
}

// Rows, slots and backends in the tables. There is room for all entries that a test makes, unless it sets a
// limit.
const (
	tableSize  = 1024
	recordSize = 1 << 15
)

var defaultPorts = [2][2]uint16{{1024, 28976}, {61000, 4536}}

func newWorld(t testing.TB, l limits) *world {
	t.Helper()
	l = l.complete()
	p := takePrograms(t, l)
	w := &world{network: newNetwork(t), programs: p, limits: l}
	must(t, settable.InitSecret(p.tc.Maps[bpf.EdgeTCMapTableSecret]))
	w.maps = p.tc.Maps
	w.ingress = p.tc.Programs[bpf.EdgeTCProgBeelineEdgeIngress]
	w.egress = p.tc.Programs[bpf.EdgeTCProgBeelineEdgeEgress]
	w.xdp = p.xdp.Programs[bpf.EdgeXDPProgBeelineEdgeXdp]
	var err error
	w.prefilter, err = bpf.MapPrefilter(w.maps[bpf.EdgeTCMapPrefilters], func() error { return nil })
	must(t, err)
	w.attachNothing(t)
	return w
}

// complete fills in the defaults.
func (l limits) complete() limits {
	if l.ports == [2][2]uint16{} {
		l.ports = defaultPorts
	}
	if l.tracks == 0 {
		l.tracks = recordSize
	}
	if l.affinitySets == 0 {
		l.affinitySets = recordSize / 12
	}
	return l
}

// attachNothing gives eth0 a program that passes everything: a test run wants a receive queue, and a veth has
// one only with a program. Not the edge's, which would count what the kernel sends by itself.
func (w *world) attachNothing(t testing.TB) {
	t.Helper()
	const passed = 2
	nothing, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, Flags: unix.BPF_F_XDP_HAS_FRAGS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, passed), asm.Return()}})
	must(t, err)
	defer nothing.Close()
	attached, err := link.AttachXDP(link.XDPOptions{Program: nothing, Interface: int(w.index["eth0"]), Flags: link.XDPDriverMode})
	must(t, err)
	t.Cleanup(func() { attached.Close() })
}

// setPlaces is the number of places in a set of flows.
const setPlaces = 15

// sets is the number of sets, of half-open flows and of others.
func (l limits) sets() uint32 { return max(l.tracks/setPlaces, 1) }

// set sets the sizes of the tables.
func (l limits) set(t testing.TB, spec *ebpf.CollectionSpec) {
	t.Helper()
	for name, m := range spec.Maps {
		if name[0] == '.' || m.MaxEntries != 1 {
			continue
		}
		switch name {
		case bpf.EdgeTCMapUnreplied, bpf.EdgeTCMapUnrepliedTags, bpf.EdgeTCMapConntrack, bpf.EdgeTCMapConntrackTags:
			m.MaxEntries = l.sets()
		case bpf.EdgeTCMapAffinity:
			m.MaxEntries = l.affinitySets
		case bpf.EdgeTCMapFragments:
			m.MaxEntries = recordSize
		case bpf.EdgeTCMapEdgeCounts, bpf.EdgeTCMapReplyBuffers, bpf.EdgeTCMapScratch,
			bpf.EdgeTCMapSocketCounts, bpf.EdgeTCMapPrefilters, bpf.EdgeTCMapTableSecret, bpf.EdgeTCMapKernelRoom, "edge_watched", "quotes":
		default:
			if m.Type == ebpf.Hash || m.Type == ebpf.PerCPUHash || m.Type == ebpf.Array || m.Type == ebpf.LPMTrie {
				m.MaxEntries = tableSize
			}
		}
	}
	first, count := [2]uint16{l.ports[0][0], l.ports[1][0]}, [2]uint16{l.ports[0][1], l.ports[1][1]}
	must(t, spec.Variables[bpf.EdgeTCVarSnatFirst].Set(first))
	must(t, spec.Variables[bpf.EdgeTCVarSnatCount].Set(count))
	must(t, spec.Variables[bpf.EdgeTCVarUnrepliedSets].Set(l.sets()))
	must(t, spec.Variables[bpf.EdgeTCVarConntrackSets].Set(l.sets()))
	must(t, spec.Variables[bpf.EdgeTCVarAffinitySets].Set(l.affinitySets))
	if l.timeouts != nil {
		must(t, spec.Variables[bpf.EdgeTCVarCtTimeouts].Set(l.timeouts))
	}
	must(t, spec.Variables[bpf.EdgeTCVarIcmpPerSecond].Set(l.icmpRate))
	must(t, spec.Variables[bpf.EdgeTCVarIcmpBurst].Set(l.icmpBurst))
	must(t, spec.Variables[bpf.EdgeTCVarDsrAccept].Set(uint8(1)))
	must(t, spec.Variables[bpf.EdgeTCVarKernelEntries].Set(bpf.KernelEntries()))
	must(t, spec.Variables[bpf.EdgeTCVarKernelConntrack].Set(bpf.KernelConntrack()))
}

var podNetworks = prefixes("10.10.0.0/16", "fd00:10::/32")

// tables are empty ones of this node, with routes, addresses and ports.
func (w *world) tables() *model.Tables {
	return &model.Tables{
		Frontends: map[model.FrontendKey]model.Frontend{},
		Backends:  map[uint32]model.Backend{},
		Ranges:    map[uint32][]netip.Prefix{},
		Services:  prefixes("10.96.0.0/16", "fd00:96::/112"),
		Pods:      podNetworks,
		Devices: map[uint32][2]netip.Addr{
			w.index["eth0"]: {netip.MustParseAddr("192.168.100.1"), netip.MustParseAddr("fd00:100::1")},
			w.index["eth1"]: {netip.MustParseAddr("192.168.101.1"), netip.MustParseAddr("fd00:101::1")},
		},
		MACs:   map[uint32][6]byte{w.index["eth0"]: w.mac["eth0"], w.index["eth1"]: w.mac["eth1"]},
		PodsAt: map[uint32]bool{},
		Ports:  w.limits.ports,
		Route:  w.route,
	}
}

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// apply replaces the contents of the tables, and shuts the prefilter to all else.
func (w *world) apply(t testing.TB, tables *model.Tables) {
	t.Helper()
	for _, name := range []string{bpf.EdgeTCMapFrontends, bpf.EdgeTCMapSourceRanges,
		bpf.EdgeTCMapNetworks, bpf.EdgeTCMapEdgeDevices, bpf.EdgeTCMapBalancers} {
		w.empty(t, name)
	}
	for id := range uint32(64) {
		b := tables.Backends[id]
		row := bpf.Backend{Port: bpf.NetworkOrder(b.Port)}
		if b.Address.IsValid() {
			row.Address.Bytes = b.Address.As16()
			row.Node = row.Address
		}
		if b.Node.IsValid() {
			row.Node.Bytes = b.Node.As16()
		}
		if b.Local {
			row.Local = 1
		}
		w.put(t, bpf.EdgeTCMapBackends, id, row)
	}
	slot, number := uint32(0), uint32(0)
	write := func(words []uint32) codec.Range {
		first := slot
		for _, word := range words {
			w.put(t, bpf.EdgeTCMapSlots, slot, word)
			slot++
		}
		return codec.Range{First: first, Count: uint32(len(words))}
	}
	decision := func(d model.Decision, maglev bool) (row bpf.Decision, members codec.Range) {
		if len(d.Slots) == 0 {
			return bpf.Decision{First: uint32(d.Verdict)}, members
		}
		if !maglev {
			tables.SortMembers(d.Slots)
			members = write(d.Slots)
			return bpf.Decision(members), members
		}
		list := slices.Clone(d.Slots)
		tables.SortMembers(list)
		members = write(slices.Compact(list))
		return bpf.Decision(write(d.Slots)), members
	}
	history := func(f model.Frontend) codec.Range {
		var words []uint32
		for _, s := range f.History {
			words = append(words, codec.HistoryWord(s.Stable, s.Contested))
		}
		return write(words)
	}
	var ends bpf.UntrackedEnds
	must(t, w.maps[bpf.EdgeTCMapUntrackedFrontends].Lookup(uint32(0), &ends))
	ends = bpf.UntrackedEnds{SockUntrackedFilter: bpf.SockUntrackedFilter{Epoch: ends.Epoch + 1, Accepted: bpf.AcceptTunnels | bpf.AcceptOption}}
	for key, f := range tables.Frontends {
		number++
		row := bpf.Frontend{Key: frontendKey(key), Service: f.Service, AffinitySeconds: f.AffinitySeconds, SourceSet: f.SourceSet, Dsr: uint8(f.DSR)}
		lists := bpf.FrontendLists{}
		row.Decisions[0], lists.Members[0] = decision(f.Pod, f.Maglev)
		row.Decisions[2], lists.Members[2] = decision(f.Outside, f.Maglev)
		if f.Maglev || f.History != nil {
			row.Lists = number
		}
		if f.Maglev {
			row.Flags |= uint16(bpf.FlagMaglev)
		}
		if f.Untracked {
			row.Flags |= uint16(bpf.FlagUntracked)
			ends.Add(row.Key)
		}
		if f.History != nil {
			row.Flags |= uint16(bpf.FlagHistory)
			lists.History, lists.HistoryDsr = history(f), uint32(f.Before)
			ends.Add(row.Key)
		}
		if f.NodePort {
			row.Kind = 3 // enum frontend_kind
		}
		w.put(t, bpf.EdgeTCMapFrontendListRows, number, lists)
		w.put(t, bpf.EdgeTCMapFrontendRows, number, row)
		w.put(t, bpf.EdgeTCMapFrontends, row.Key, number)
	}
	w.put(t, bpf.EdgeTCMapUntrackedFrontends, uint32(0), ends)
	for set, ranges := range tables.Ranges {
		for _, p := range ranges {
			w.put(t, bpf.EdgeTCMapSourceRanges, codec.SourceRangeKey(set, p), uint32(1))
		}
	}
	for kind, networks := range map[uint32][]netip.Prefix{1: tables.Services, 2: tables.Pods} {
		for _, p := range networks {
			w.put(t, bpf.EdgeTCMapNetworks, codec.NetworkKey(p), kind)
		}
	}
	for _, p := range tables.Balancers {
		w.put(t, bpf.EdgeTCMapBalancers, codec.NetworkKey(p), bpf.IsBalancer)
	}
	for device, own := range tables.Devices {
		for _, a := range own {
			if slices.ContainsFunc(tables.Balancers, func(p netip.Prefix) bool { return p.Contains(a) }) {
				w.put(t, bpf.EdgeTCMapBalancers, bpf.NetworkKey{Prefixlen: 128, Address: bpf.AddressFrom(a)}, bpf.IsOwn)
			}
		}
		var row bpf.EdgeTCEdgeDevice
		row.Source4.Bytes, row.Source6.Bytes, row.Mac = own[0].As16(), own[1].As16(), tables.MACs[device]
		row.Outer4.Bytes, row.Outer6.Bytes = row.Source4.Bytes, row.Source6.Bytes
		if tables.PodsAt[device] {
			row.Pods = 1
		}
		w.put(t, bpf.EdgeTCMapEdgeDevices, device, row)
	}
	must(t, w.prefilter.SetServiceNetworks(tables.Services))
	must(t, w.prefilter.SetPodNetworks(tables.Pods, tables.Services))
	w.shut(t)
}

// shut makes the prefilter admit only what asks for frontends, and what has an entry. No program runs
// meanwhile.
func (w *world) shut(t testing.TB) {
	t.Helper()
	must(t, w.prefilter.Rebuild(func() error { return fillPrefilter(w, w.prefilter) }))
}

// fillPrefilter fills a prefilter as an agent does.
func fillPrefilter(w *world, prefilter *bpf.Prefilter) error {
	var row uint32
	var frontend bpf.FrontendKey
	frontends := w.maps[bpf.EdgeTCMapFrontends].Iterate()
	for frontends.Next(&frontend, &row) {
		prefilter.Add(frontend)
	}
	err := frontends.Err()
	return errors.Join(err, conntrack.TablesOf(w.maps).Walk(prefilter.AddFlow))
}

func frontendKey(k model.FrontendKey) bpf.FrontendKey {
	return bpf.FrontendKey{Address: bpf.AddressFrom(k.Address), Port: bpf.NetworkOrder(k.Port), Protocol: k.Protocol}
}

func (w *world) put(t testing.TB, name string, key, value any) {
	t.Helper()
	if err := w.maps[name].Put(key, value); err != nil {
		t.Fatalf("table %s, key %v: %v", name, key, err)
	}
}

// empty removes all entries of a table.
func (w *world) empty(t testing.TB, name string) {
	t.Helper()
	m := w.maps[name]
	var key []byte
	var keys [][]byte
	value := make([]byte, m.ValueSize())
	for entries := m.Iterate(); entries.Next(&key, &value); {
		keys = append(keys, slices.Clone(key))
	}
	for _, key := range keys {
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Fatalf("table %s: %v", name, err)
		}
	}
}

// forget removes the programs' state.
func (w *world) forget(t testing.TB) {
	t.Helper()
	for _, name := range []string{bpf.EdgeTCMapFragments, bpf.EdgeTCMapOuterPaths} {
		w.empty(t, name)
	}
	w.emptyAffinity(t)
	for _, name := range []string{halfOpen, tracks} {
		must(t, w.flowTable(name).Walk(func(key bpf.Tuple, _ *bpf.ConntrackEntry) bool { return w.lose(t, name, modelTuple(key)) }))
	}
	cpus, err := ebpf.PossibleCPU()
	must(t, err)
	w.put(t, bpf.EdgeTCMapEdgeCounts, uint32(0), make([]bpf.EdgeTCEdgeCounters, cpus))
}
