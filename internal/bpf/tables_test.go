// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTablesKeepWhatIsStored: tables keep their entries while no agent runs.
func TestTablesKeepWhatIsStored(t *testing.T) {
	o := options(t)
	d := mustOpen(t, o)
	row := Frontend{Key: frontendKey(1), Service: 7, AffinitySeconds: 60, Decisions: [3]Decision{{First: 1, Count: 2}, {First: uint32(Drop)}}}
	backend := Backend{Address: AddressFrom(netip.MustParseAddr("fd00::1")), Port: NetworkOrder(8080), Protocol: 6, Local: 1}
	source := SourceRangeKey{Prefixlen: 32 + PrefixLen(netip.MustParsePrefix("192.0.2.0/24")), SourceSet: 3, Address: AddressFrom(netip.MustParseAddr("192.0.2.0"))}
	network := NetworkKey{Prefixlen: PrefixLen(netip.MustParsePrefix("fd00:96::/112")), Address: AddressFrom(netip.MustParseAddr("fd00:96::"))}
	name := ServiceName{Protocol: 6}
	copy(name.Name[:], "web")
	for _, err := range []error{
		d.Tables.FrontendRows.Store(5, row), d.Tables.Frontends.Put(frontendKey(1), 5),
		d.Tables.Slots.Store(1, 9), d.Tables.Backends.Store(9, backend),
		d.Tables.SourceRanges.Put(source, 1), d.Tables.Networks.Put(network, NetworkService),
		d.Tables.Services.Put(7, name),
	} {
		must(t, err)
	}
	d.Close()

	tables := mustOpen(t, o).Tables
	check := func(what string, got any, err error, want any) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", what, err, diff)
		}
	}
	index, err := tables.Frontends.All()
	check("frontends", index, err, map[FrontendKey]uint32{frontendKey(1): 5})
	rows, err := tables.FrontendRows.All()
	check("rows", rows, err, map[uint32]Frontend{5: row})
	slots, err := tables.Slots.All()
	check("slots", slots, err, map[uint32]uint32{1: 9})
	backends, err := tables.Backends.All()
	check("backends", backends, err, map[uint32]Backend{9: backend})
	ranges, err := tables.SourceRanges.All()
	check("source ranges", ranges, err, map[SourceRangeKey]uint32{source: 1})
	networks, err := tables.Networks.All()
	check("networks", networks, err, map[NetworkKey]Network{network: NetworkService})
	services, err := tables.Services.All()
	check("services", services, err, map[uint32]ServiceName{7: name})
	check("prefix of a source range", source.Prefix().String(), nil, "192.0.2.0/24")
	check("prefix of a network", network.Prefix().String(), nil, "fd00:96::/112")
}

// TestAllReadsLargeTables: a table has more entries than one batch.
func TestAllReadsLargeTables(t *testing.T) {
	tables := mustOpen(t, options(t)).Tables
	const n = 20000
	for i := range uint32(n) {
		must(t, tables.Services.Put(i, ServiceName{}))
	}
	all, err := tables.Services.All()
	if len(all) != n || err != nil {
		t.Errorf("%d of %d entries, %v", len(all), n, err)
	}
}

func TestFullTableNamesItsFlag(t *testing.T) {
	o := options(t)
	o.Limits = Limits{Frontends: 2, SourceRanges: 2}
	tables := mustOpen(t, o).Tables
	var err error
	for n := range byte(3) {
		err = tables.Frontends.Put(frontendKey(n), 1)
	}
	var full *FullError
	if !errors.As(err, &full) || !strings.Contains(err.Error(), "--max-frontends") {
		t.Errorf("third frontend of two: %v", err)
	}
	for n := range uint32(3) {
		err = tables.SourceRanges.Put(SourceRangeKey{SourceSet: n, Prefixlen: 160}, 1)
	}
	if !errors.As(err, &full) || !strings.Contains(err.Error(), "--max-source-ranges") {
		t.Errorf("third source range of two: %v", err)
	}
	balancers := &FullError{EdgeTCMapBalancers, NetworkLimit, componentList{edgeAt()}.table(EdgeTCMapBalancers)}
	if !strings.Contains(balancers.Error(), "set --dsr-balancers to the nodes' networks") {
		t.Errorf("too many balancers: %v", balancers)
	}
}
