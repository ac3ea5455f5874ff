// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
)

// array is a table in memory that records writes.
type array[V comparable] struct {
	name   string
	rows   []V
	writes *[]string
}

func (a *array[V]) Len() uint32                { return uint32(len(a.rows)) }
func (a *array[V]) Load(i uint32) V            { return a.rows[i] }
func (a *array[V]) All() (map[uint32]V, error) { panic("nobody reads all rows here") }

func (a *array[V]) Store(i uint32, v V) error {
	a.rows[i] = v
	*a.writes = append(*a.writes, a.name)
	return nil
}

func newTables() (t *bpf.Tables, writes *[]string) {
	writes = new([]string)
	return &bpf.Tables{
		FrontendRows:  &array[bpf.Frontend]{"row", make([]bpf.Frontend, 4), writes},
		FrontendLists: &array[bpf.FrontendLists]{"lists", make([]bpf.FrontendLists, 4), writes},
		Slots:         &array[uint32]{"slots", []uint32{0, 10, 20, 30}, writes},
	}, writes
}

const outside = service.FromOutside

// TestFrontendIsReadAsWritten: a frontend is read as it was written. The row of its lists is written first,
// and only if it has lists; erasing clears everything.
func TestFrontendIsReadAsWritten(t *testing.T) {
	f := NewFrontend(&service.Frontend{Key: service.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: service.TCP},
		Kind: service.NodePort, DSR: service.DSRGeneve, Untracked: true, LoopbackExact: true}, 7)
	f.SetSourceSet(9)
	f.SetVerdict(service.FromPod, service.Reject)
	f.SetVerdict(service.FromNode, service.Drop)
	plain := f
	plain.SetSlots(outside, Range{First: 1, Count: 3}, false)
	maglev := f
	maglev.SetSlots(outside, Range{First: 3, Count: 251}, true)
	lists := Lists{Members: [service.SourceClasses]Range{outside: {First: 1, Count: 2}}, Retained: Range{First: 1, Count: 1},
		History: Range{First: 2, Count: 1}, HistoryDSR: bpf.DSRIPIP}
	maglev.SetLists(lists)
	for name, test := range map[string]struct {
		f      Frontend
		lists  Lists
		writes []string
	}{
		"a set":          {plain, Lists{Members: [service.SourceClasses]Range{outside: {First: 1, Count: 3}}}, []string{"row"}},
		"a Maglev table": {maglev, lists, []string{"lists", "row"}},
	} {
		tables, writes := newTables()
		must(t, test.f.Store(tables, 2))
		if !slices.Equal(*writes, test.writes) {
			t.Errorf("%s: written %v, want %v", name, *writes, test.writes)
		}
		got, err := LoadFrontend(tables, 2)
		must(t, err)
		if got != test.f || got.Lists() != test.lists {
			t.Errorf("%s: written %+v, read %+v, lists %+v", name, test.f, got, got.Lists())
		}
		if got.Verdict(service.FromPod) != service.Reject || got.Verdict(service.FromNode) != service.Drop || got.Verdict(outside) != service.Balance {
			t.Errorf("%s: verdicts %s, %s, %s", name, got.Verdict(service.FromPod), got.Verdict(service.FromNode), got.Verdict(outside))
		}
		if got.Port() != 7 || got.SourceSet() != 9 || DSROf(got.DSR()) != service.DSRGeneve || !got.Untracked() || !got.LoopbackExact() || got.OwnAddress() {
			t.Errorf("%s: read %+v", name, got)
		}
		must(t, EraseFrontend(tables, 2))
		if got, err := LoadFrontend(tables, 2); err != nil || got != (Frontend{}) || tables.FrontendLists.Load(2) != (bpf.FrontendLists{}) {
			t.Errorf("%s: %+v is left after erasing, %v", name, got, err)
		}
	}
}

// TestDamagedFrontend: a row that does not exist, or that names the lists of another row, is an error.
func TestDamagedFrontend(t *testing.T) {
	tables, _ := newTables()
	must(t, tables.FrontendRows.Store(1, bpf.Frontend{Lists: 2}))
	for number, want := range map[uint32]string{1: "names the lists of row 2", 4: "there is no row 4"} {
		if _, err := LoadFrontend(tables, number); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("row %d: %v, want %q", number, err, want)
		}
	}
}

// TestSlots: a range of slots is read up to the end of the table.
func TestSlots(t *testing.T) {
	tables, _ := newTables()
	for at, want := range map[Range][]uint32{{First: 1, Count: 2}: {10, 20}, {First: 3, Count: 5}: {30}, {First: 9, Count: 1}: nil, {First: 2}: {}} {
		if got := Slots(tables, at); !slices.Equal(got, want) {
			t.Errorf("%+v holds %v, want %v", at, got, want)
		}
	}
	for at, want := range map[Range]bool{{First: 1, Count: 3}: true, {First: 1, Count: 4}: false, {First: 1 << 31, Count: 1 << 31}: false} {
		if Valid(at, 4) != want {
			t.Errorf("%+v is valid: %v", at, !want)
		}
	}
}

// TestHistoryWord: a word is decoded as it was encoded.
func TestHistoryWord(t *testing.T) {
	for _, contested := range []bool{false, true} {
		for _, id := range []uint32{0, 1, 1<<31 - 1} {
			if backend, is := ParseHistoryWord(HistoryWord(id, contested)); backend != id || is != contested {
				t.Errorf("backend %d, contested %v: decoded %d, %v", id, contested, backend, is)
			}
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
