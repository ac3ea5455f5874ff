// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
)

// programs are the edge's, loaded over one set of tables. Loading them takes seconds, nearly all of a short
// test's time, so worlds with the same limits use them one after the other.
type programs struct {
	limits  limits
	tc, xdp *ebpf.Collection
	data    map[*ebpf.Map][]byte // initial contents of .bss and .data
	mapped  map[string][]byte    // conntrack tables that a test has mapped
}

// idle are the programs that no world uses. Tests of this package run one after the other.
var idle []*programs

// takePrograms returns programs with initial tables, until the test's end.
func takePrograms(t testing.TB, l limits) *programs {
	t.Helper()
	var p *programs
	if i := slices.IndexFunc(idle, func(p *programs) bool { return reflect.DeepEqual(p.limits, l) }); i >= 0 {
		p = idle[i]
		idle = slices.Delete(idle, i, i+1)
	} else {
		p = loadPrograms(t, l)
	}
	t.Cleanup(func() {
		if !p.shareable() {
			p.close()
			return
		}
		if err := p.reset(); err != nil {
			t.Errorf("returning the tables: %v", err)
			p.close()
			return
		}
		idle = append(idle, p)
	})
	return p
}

// shareable reports whether more than one test uses these limits: they are the default.
func (p *programs) shareable() bool {
	return reflect.DeepEqual(p.limits, limits{}.complete())
}

func (p *programs) close() {
	for _, memory := range p.mapped {
		unix.Munmap(memory)
	}
	p.xdp.Close()
	p.tc.Close()
}

func loadPrograms(t testing.TB, l limits) *programs {
	t.Helper()
	p := &programs{limits: l, data: map[*ebpf.Map][]byte{}, mapped: map[string][]byte{}}
	tc, err := bpf.LoadEdgeTC()
	must(t, err)
	l.set(t, tc)
	must(t, tc.Variables[bpf.EdgeTCVarPseudoHeaderV6].Set(bpf.PseudoHeaderV6()))
	p.tc, err = ebpf.NewCollection(tc)
	must(t, err)
	xdp, err := bpf.LoadEdgeXDP()
	must(t, err)
	l.set(t, xdp)
	shared := maps.Clone(p.tc.Maps)
	maps.DeleteFunc(shared, func(name string, _ *ebpf.Map) bool {
		return xdp.Maps[name] == nil || name[0] == '.'
	})
	p.xdp, err = ebpf.NewCollectionWithOptions(xdp, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		p.tc.Close()
	}
	must(t, err)
	for name, m := range p.all {
		if name[0] == '.' && name != ".rodata" {
			p.data[m], err = m.LookupBytes(uint32(0))
			must(t, err)
		}
	}
	return p
}

// reload loads the programs of a world once more, changed, over the same tables.
func (w *world) reload(t testing.TB, load func() (*ebpf.CollectionSpec, error), tables map[string]*ebpf.Map, change func(*ebpf.CollectionSpec)) map[string]*ebpf.Program {
	t.Helper()
	spec, err := load()
	must(t, err)
	w.limits.set(t, spec)
	if v := spec.Variables[bpf.EdgeTCVarPseudoHeaderV6]; v != nil {
		must(t, v.Set(bpf.PseudoHeaderV6()))
	}
	change(spec)
	shared := maps.Clone(tables)
	maps.DeleteFunc(shared, func(name string, _ *ebpf.Map) bool { return spec.Maps[name] == nil || name[0] == '.' })
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	must(t, err)
	t.Cleanup(c.Close)
	return c.Programs
}

// rows maps an array of conntrack entries or of their tags: tests read all rows after nearly every packet, and
// a system call for each row would take most of their time.
func rows[T any](t testing.TB, p *programs, table string) []T {
	t.Helper()
	m := p.tc.Maps[table]
	size := int(unsafe.Sizeof(*new(T)))
	if p.mapped[table] == nil {
		if size%8 != 0 || size != int(m.ValueSize()) {
			t.Fatalf("table %s: rows of %d bytes, want %d, a multiple of 8", table, m.ValueSize(), size)
		}
		memory, err := unix.Mmap(m.FD(), 0, size*int(m.MaxEntries()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		must(t, err)
		p.mapped[table] = memory
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&p.mapped[table][0])), m.MaxEntries())
}

// all yields all tables with their names; each that both collections share only once.
func (p *programs) all(yield func(string, *ebpf.Map) bool) {
	for _, c := range []*ebpf.Collection{p.tc, p.xdp} {
		for name, m := range c.Maps {
			if (c == p.tc || name[0] == '.') && !yield(name, m) {
				return
			}
		}
	}
}

// reset restores the initial contents of all tables.
func (p *programs) reset() error {
	var errs []error
	for name, m := range p.all {
		if name == ".rodata" {
			continue
		}
		if err := resetTable(m, p.data[m]); err != nil {
			errs = append(errs, fmt.Errorf("table %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// resetTable empties a table. It fills an array with zeros, or with the given value.
func resetTable(m *ebpf.Map, value []byte) error {
	switch m.Type() {
	case ebpf.Hash, ebpf.PerCPUHash, ebpf.LRUHash, ebpf.LPMTrie:
		return emptyTable(m)
	case ebpf.Array, ebpf.PerCPUArray:
		return fillTable(m, value)
	case ebpf.RingBuf:
		return drainEvents(m)
	case ebpf.SkStorage, ebpf.ProgramArray: // the former ends with its sockets; only migrations fill the latter
		return nil
	default:
		return fmt.Errorf("cannot empty a map of type %s: add it here", m.Type())
	}
}

func emptyTable(m *ebpf.Map) error {
	for {
		key, err := m.NextKeyBytes(nil)
		if err != nil || key == nil {
			return err
		}
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
}

func fillTable(m *ebpf.Map, value []byte) error {
	copies := 1
	if m.Type() == ebpf.PerCPUArray {
		var err error
		if copies, err = ebpf.PossibleCPU(); err != nil {
			return err
		}
	}
	if value == nil {
		value = make([]byte, m.ValueSize())
	}
	for key := range m.MaxEntries() {
		old, err := m.LookupBytes(key)
		if err != nil {
			return err
		}
		if copies == 1 && !bytes.Equal(old, value) {
			err = m.Put(key, value)
		}
		if copies > 1 && !isZero(old) {
			err = m.Put(key, slices.Repeat([][]byte{value}, copies))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// drainEvents discards unread events.
func drainEvents(m *ebpf.Map) error {
	r, err := ringbuf.NewReader(m)
	if err != nil {
		return err
	}
	defer r.Close()
	r.SetDeadline(time.Now())
	for err == nil {
		_, err = r.Read()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

func isZero(b []byte) bool { return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) }

// Programs that a test has used look unused to the next one: no table shows a difference.
func TestProgramsAreAsNew(t *testing.T) {
	fresh := loadPrograms(t, limits{}.complete())
	defer fresh.close()
	var used *programs
	t.Run("use", func(t *testing.T) {
		w := newScene(t)
		used = w.programs
		for _, at := range []hook{atXDP, atIngress} {
			for _, f := range families {
				for port := range uint16(50) {
					p := f.question(udp, toRemote)
					p.from = on(f.client, 20000+port)
					w.run(t, at, p.frame(t))
				}
			}
		}
		if tableThatDiffers(t, used, fresh) == "" {
			t.Error("the traffic leaves nothing in the tables: the test proves nothing")
		}
	})
	if !slices.Contains(idle, used) {
		t.Fatal("the programs are not kept for the next test")
	}
	if text := tableThatDiffers(t, used, fresh); text != "" {
		t.Error(text)
	}
}

// tableThatDiffers names the first table whose contents differ.
func tableThatDiffers(t *testing.T, a, b *programs) string {
	t.Helper()
	for i, of := range []*programs{a, b} {
		other := []*programs{b, a}[i]
		for name, m := range of.all {
			twin := other.tc.Maps[name]
			if of.tc.Maps[name] != m {
				twin = other.xdp.Maps[name]
			}
			switch m.Type() {
			case ebpf.SkStorage, ebpf.RingBuf:
				continue
			}
			for key, err := m.NextKeyBytes(nil); key != nil || err != nil; key, err = m.NextKeyBytes(key) {
				must(t, err)
				one, err := m.LookupBytes(key)
				must(t, err)
				two, err := twin.LookupBytes(key)
				must(t, err)
				if !bytes.Equal(one, two) {
					return fmt.Sprintf("table %s, key %x: %x in one, %x in the other", name, key, one, two)
				}
			}
		}
	}
	return ""
}
