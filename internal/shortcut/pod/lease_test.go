// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"maps"
	"math"
	"net/netip"
	"testing"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack/kernelct"
	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/kernelclock"
)

// memory is a table.
type memory[K comparable, V any] map[K]V

func (m memory[K, V]) Max() uint32           { return 1 << 20 }
func (m memory[K, V]) Put(k K, v V) error    { m[k] = v; return nil }
func (m memory[K, V]) Delete(k K) error      { delete(m, k); return nil }
func (m memory[K, V]) All() (map[K]V, error) { return maps.Clone(m), nil }

// fakeDatapath has tables and no programs.
type fakeDatapath struct {
	Datapath
	pods    memory[bpf.Address, Row]
	devices memory[uint32, DeviceRow]
	links   memory[uint32, uint32]
	bridges memory[uint32, uint32]
	leases  memory[uint32, LeaseRow]
	unknown memory[bpf.Address, uint32]
	track   func() // is called when flows are tracked; nil: nothing
}

func newFakeDatapath() *fakeDatapath {
	return &fakeDatapath{
		pods: memory[bpf.Address, Row]{}, devices: memory[uint32, DeviceRow]{},
		links: memory[uint32, uint32]{}, bridges: memory[uint32, uint32]{}, leases: memory[uint32, LeaseRow]{},
		unknown: memory[bpf.Address, uint32]{},
	}
}

func (d *fakeDatapath) Enabled(string) bool                    { return false }
func (d *fakeDatapath) Pods() bpf.Hash[bpf.Address, Row]       { return d.pods }
func (d *fakeDatapath) Devices() bpf.Hash[uint32, DeviceRow]   { return d.devices }
func (d *fakeDatapath) Links() bpf.Hash[uint32, uint32]        { return d.links }
func (d *fakeDatapath) Unknown() bpf.Hash[bpf.Address, uint32] { return d.unknown }
func (d *fakeDatapath) Bridges() bpf.Hash[uint32, uint32]      { return d.bridges }
func (d *fakeDatapath) Leases() bpf.Hash[uint32, LeaseRow]     { return d.leases }
func (d *fakeDatapath) WaitForReaders() error                  { return nil }
func (d *fakeDatapath) UntrackFlows([]kernelct.Flow) error     { return nil }
func (d *fakeDatapath) HandedFlows() ([]kernelct.Flow, error)  { return nil, nil }
func (d *fakeDatapath) TrackFlows(map[netip.Addr]bool) ([]kernelct.Flow, error) {
	if d.track != nil {
		d.track()
	}
	return nil, nil
}
func (d *fakeDatapath) ForeignProgram(uint32) (name string, foreign bool) { return "", false }

// fakeFinder finds no filters, or fails.
type fakeFinder struct{ err error }

func (f *fakeFinder) find(surroundings) ([]filter, error) { return nil, f.err }
func (f *fakeFinder) follow() error                       { return nil }
func (f *fakeFinder) wait(context.Context) error          { return nil }

// Only a complete search extends the lease, from its begin on. A lease that has ended is a condition until then.
func TestLease(t *testing.T) {
	d := newFakeDatapath()
	s := newShortcut(d, Config{Network: new(node.Network), Lease: 30 * time.Second})
	s.read = func() (*network, error) { return &network{}, nil }
	finder := &fakeFinder{errors.New("no rules")}
	s.filters = finder
	s.Start()
	if len(d.leases) > 0 {
		t.Errorf("a search that failed has extended the lease: %v", d.leases)
	}
	finder.err = nil
	begin := kernelclock.CoarseSeconds()
	s.searchFilters()
	if got := d.leases[0].Until; got < begin+29 || got > begin+31 {
		t.Errorf("the lease of 30 s ends %d s after the begin of the search", got-begin)
	}
	if has(s.Conditions(), condition.PodShortcutUnsearched) {
		t.Error("a condition although the search is recent")
	}
	if err := s.extendLease(time.Now().Add(-20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if got := d.leases[0].Until; got > begin+15 {
		t.Errorf("a search took 20 s: the lease of 30 s ends %d s after the end of the search, want about 10: it begins with the search", got-begin)
	}
	s.lease.until.Store(begin - 10)
	if !has(s.Conditions(), condition.PodShortcutUnsearched) {
		t.Error("no condition although the last search is 40 seconds old")
	}
	s.searchFilters()
	if has(s.Conditions(), condition.PodShortcutUnsearched) {
		t.Error("a condition after a search")
	}
	s.config.IgnoreFilters = true
	s.searchFilters()
	if got := d.leases[0].Until; got != math.MaxUint32 {
		t.Errorf("without filters the lease ends at %d", got)
	}
}

func has(l condition.List, kind *condition.Kind) bool {
	for _, c := range l {
		if c.Code == kind.Code {
			return true
		}
	}
	return false
}
