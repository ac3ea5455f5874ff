// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
)

type fakeHash[K comparable, V any] map[K]V

func (h fakeHash[K, V]) Max() uint32           { return uint32(len(h)) }
func (h fakeHash[K, V]) Put(K, V) error        { return errors.ErrUnsupported }
func (h fakeHash[K, V]) Delete(K) error        { return errors.ErrUnsupported }
func (h fakeHash[K, V]) All() (map[K]V, error) { return h, nil }

// fakeArray counts reads.
type fakeArray[V any] struct {
	rows []V
	read int
}

func (a *fakeArray[V]) Len() uint32                { return uint32(len(a.rows)) }
func (a *fakeArray[V]) Load(i uint32) V            { a.read++; return a.rows[i] }
func (a *fakeArray[V]) Store(uint32, V) error      { return errors.ErrUnsupported }
func (a *fakeArray[V]) All() (map[uint32]V, error) { return nil, errors.ErrUnsupported }

// sharedTables holds Services with a ClusterIP each, in two namespaces, all with the same backends but each
// with its own set, as written by package reconcile.
func sharedTables(services, backends int) (*bpf.Tables, *fakeArray[uint32]) {
	index, names := fakeHash[bpf.FrontendKey, uint32]{}, fakeHash[uint32, bpf.ServiceName]{}
	rows := &fakeArray[bpf.Frontend]{rows: make([]bpf.Frontend, services+1)}
	slots := &fakeArray[uint32]{rows: make([]uint32, services*backends)}
	ends := &fakeArray[bpf.Backend]{rows: make([]bpf.Backend, backends+1)}
	for i := 1; i <= backends; i++ {
		addr := bpf.AddressFrom(netip.AddrFrom4([4]byte{10, 10, byte(i >> 8), byte(i)}))
		ends.rows[i] = bpf.Backend{Address: addr, Node: addr, Port: bpf.NetworkOrder(8080), Protocol: uint8(service.TCP)}
	}
	for n := range services {
		key := bpf.FrontendKey{Address: bpf.AddressFrom(netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)})),
			Port: bpf.NetworkOrder(80), Protocol: uint8(service.TCP)}
		id := uint32(n + 1)
		index[key] = id
		name := bpf.ServiceName{Protocol: uint8(service.TCP)}
		copy(name.Namespace[:], fmt.Sprint("n", n%2))
		copy(name.Name[:], fmt.Sprintf("web%05d", n))
		names[id] = name
		row := bpf.Frontend{Key: key, Service: id, Kind: uint8(service.ClusterIP)}
		for class := range row.Decisions {
			row.Decisions[class] = bpf.Decision{First: uint32(n * backends), Count: uint32(backends)}
		}
		rows.rows[id] = row
		for i := range backends {
			slots.rows[n*backends+i] = uint32(i + 1)
		}
	}
	return &bpf.Tables{Frontends: index, FrontendRows: rows, Slots: slots, Backends: ends, Services: names,
		SourceRanges: fakeHash[bpf.SourceRangeKey, uint32]{}, Networks: fakeHash[bpf.NetworkKey, bpf.Network]{}}, slots
}

// TestReadScope: each scope returns the expected part, and a read of one Service does not read the others.
func TestReadScope(t *testing.T) {
	tables, slots := sharedTables(10, 3)
	full, err := ReadTables(tables)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, s := range full.Services {
		all = append(all, s.Namespace+"/"+s.Name)
		if f := s.Frontends[0]; len(f.FromPods.Backends) != 3 || f.FromPods.Backends[1].Slots != 1 {
			t.Errorf("%s has %+v", s.Name, f.FromPods.Backends)
		}
	}
	for _, b := range full.Backends {
		if !slices.Equal(b.Services, all) || len(all) != 10 {
			t.Errorf("backend %s is of %v, want %v", b.Address, b.Services, all)
		}
	}
	slots.read = 0
	for name, want := range map[string]int{"n1/web00003": 1, "web00003": 1, "n0/web00003": 0, "web": 0} {
		one, err := ReadScope(context.Background(), tables, Scope{Service: name})
		if err != nil || len(one.Services) != want {
			t.Errorf("%s: %d Services, %v; want %d", name, len(one.Services), err, want)
		} else if want == 1 && cmp.Diff(full.Services[6].Frontends[0].FromPods, one.Services[0].Frontends[0].FromPods) != "" {
			t.Errorf("%s read alone has different backends: %+v", name, one.Services[0].Frontends[0].FromPods)
		}
	}
	if slots.read != 2*3 {
		t.Errorf("reading two Services of 3 backends took %d slots", slots.read)
	}
	outline, err := ReadScope(context.Background(), tables, Scope{Outline: true})
	if err != nil || countsOf(outline) != countsOf(full) || len(outline.Services[0].Frontends[0].FromPods.Backends) != 0 {
		t.Errorf("outline: %+v, %v; want %+v, and no backends of frontends", countsOf(outline), err, countsOf(full))
	}
	owners, err := ReadScope(context.Background(), tables, Scope{Outline: true, Owners: true})
	if err != nil || cmp.Diff(full.Backends, owners.Backends) != "" {
		t.Errorf("an outline with owners has different backends: %v\n%s", err, cmp.Diff(full.Backends, owners.Backends))
	}
}

// TestReadEndsWithItsRequest: the read ends when the client disconnects.
func TestReadEndsWithItsRequest(t *testing.T) {
	tables, slots := sharedTables(1000, 3)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := ReadScope(ctx, tables, Scope{}); !errors.Is(err, context.Canceled) || slots.read > 0 {
		t.Errorf("after the end of the request: %v, and %d slots were read", err, slots.read)
	}
}

// BenchmarkReadTables reads Services that share 20 backends. Ten times as many Services may take
// ten times as long.
func BenchmarkReadTables(b *testing.B) {
	for _, services := range []int{1000, 10000} {
		tables, _ := sharedTables(services, 20)
		for _, c := range []struct {
			command string
			scope   Scope
		}{{"status", Scope{Outline: true}}, {"service-show", Scope{Service: "n1/web00003"}},
			{"backend-list", Scope{Outline: true, Owners: true}}, {"service-list", Scope{}}} {
			b.Run(fmt.Sprintf("%s/services=%d", c.command, services), func(b *testing.B) {
				for b.Loop() {
					if _, err := ReadScope(context.Background(), tables, c.scope); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(services), "ns/service")
			})
		}
	}
}
