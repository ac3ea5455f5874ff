// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// A predecessor is the directory with the tables of the earlier agent, if these have another layout, or
// another size of a table that programs write. The attached programs may use them until migrate has
// replaced the programs.
type predecessor struct {
	path   string
	layout layout
	maps   map[string]*ebpf.Map // by the names of this version
}

// layout describes how the tables of an earlier version differ from this version's. A table that is not
// mentioned has the same layout.
type layout struct {
	// before9: tables have the names Table.Before9 there.
	before9 bool
	// upgrade converts copies of its tables to the layout of this version; nil: they already have it.
	upgrade func(*Datapath) error
}

// layouts are the layouts that this version migrates, by directory name. Until version 7 each set of a
// conntrack table began with its tags: there is no table of tags.
var layouts = map[string]layout{
	"tables_v7":  {before9: true, upgrade: listsSince10},
	"tables_v8":  {before9: true, upgrade: listsSince10},
	"tables_v9":  {upgrade: listsSince10},
	"tables_v10": {},
}

// newTables is the directory in which an agent pins the tables that it makes beside a predecessor's, until
// it has made all.
const newTables = "tables_new"

// asideSuffix marks the directory of tables of this version while one of them is resized.
const asideSuffix = "_resized"

// checkLayout returns an error if tables of an unknown version are pinned. A directory without pins does
// not count: a refused agent of another version may have left it.
func checkLayout(bpffs string) error {
	for _, dir := range otherLayouts(bpffs) {
		if _, known := layouts[strings.TrimSuffix(dir, asideSuffix)]; !known && dir != tablesDirectory+asideSuffix {
			return layoutError(bpffs, dir)
		}
	}
	return nil
}

// otherLayouts returns the directories with pinned tables except that of this version, the newest first.
func otherLayouts(bpffs string) (all []string) {
	pins, _ := filepath.Glob(filepath.Join(bpffs, "tables_v*", "*")) // the pattern is valid
	for _, pin := range pins {
		if name := filepath.Base(filepath.Dir(pin)); name != tablesDirectory && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	slices.Reverse(all)
	return all
}

// layoutError returns an error for pins that this version cannot use, with the remedy.
func layoutError(bpffs, what string) error {
	return fmt.Errorf("pinned %s has a layout that this version of Beeline (%s) does not know: start the version that pinned it, which continues to serve, or a newer one; "+
		"or run `beeline cleanup --pins %s` and start this one: Services are not translated in between",
		what, tablesDirectory, bpffs)
}

// openPredecessor opens the tables of the earlier agent, if there are any to migrate.
func (o *opening) openPredecessor() error {
	if !o.start.migrates() {
		return nil
	}
	directory := otherLayouts(o.options.BPFFS)[0]
	p := &predecessor{path: filepath.Join(o.options.BPFFS, directory), maps: map[string]*ebpf.Map{}}
	p.layout = layouts[strings.TrimSuffix(directory, asideSuffix)]
	o.old = p
	for _, t := range o.components.tables() {
		if !t.pinned() {
			continue
		}
		m, err := ebpf.LoadPinnedMap(filepath.Join(p.path, p.nameOf(t)), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open pinned table %s of %s: %w", p.nameOf(t), directory, err)
		}
		p.maps[t.Name] = m
	}
	return nil
}

func (p *predecessor) nameOf(t *Table) string {
	if p.layout.before9 && t.Before9 != "" {
		return t.Before9
	}
	return t.Name
}

func (p *predecessor) close() {
	if p != nil {
		closeMaps(p.maps)
	}
}

// pinTables pins the tables that this agent has made. Beside a predecessor's tables they appear atomically:
// if some were copies and some were not, the next agent would find inconsistent tables.
func (o *opening) pinTables() error {
	if !o.start.makesTables() {
		return o.pinTo(tablesDirectory)
	}
	made := filepath.Join(o.options.BPFFS, newTables)
	if err := os.Mkdir(made, 0o700); err != nil {
		return err
	}
	if err := o.pinTo(newTables); err != nil {
		return err
	}
	// os.Rename refuses an existing directory; the kernel replaces an empty one.
	if err := unix.Rename(made, filepath.Join(o.options.BPFFS, tablesDirectory)); err != nil {
		return fmt.Errorf("move the new tables to %s: %w", tablesDirectory, err)
	}
	return nil
}

func (o *opening) pinTo(directory string) error {
	for _, name := range o.made {
		if err := pinCopy(o.maps[name], filepath.Join(o.options.BPFFS, directory, name)); err != nil {
			return fmt.Errorf("pin table %s: %w", name, err)
		}
	}
	return nil
}

// removeNewTables removes what an agent left that was killed in pinTables.
func removeNewTables(bpffs string) error {
	err := removeTables(filepath.Join(bpffs, newTables))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// removeTables removes a directory of pins. Tables that no program uses any more are freed.
func removeTables(directory string) error {
	pins, err := filepath.Glob(filepath.Join(directory, "*"))
	if err != nil {
		return err
	}
	for _, pin := range pins {
		if err := os.Remove(pin); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return os.Remove(directory)
}

// An inheritance is what a new table gets from the predecessor's.
type inheritance uint8

const (
	// inheritNothing: the predecessor has no such table, or its counters have another layout.
	inheritNothing inheritance = iota
	// inheritLater: migrate copies what programs write.
	inheritLater
	// inheritTable: it is the same table. Socket storage is always shared: the kernel cannot copy it, and its
	// layout never changes.
	inheritTable
	// inheritCopy: it is a copy.
	inheritCopy
	// inheritRefused: this version does not know the predecessor's layout.
	inheritRefused
)

// inherits decides what a table gets from the predecessor's; nil: there is none.
func (t *Table) inherits(s *ebpf.MapSpec, old *ebpf.Map) inheritance {
	switch {
	case old == nil:
		return inheritNothing
	case t.Follow != nil:
		return inheritLater
	case old.Type() != s.Type || old.KeySize() != s.KeySize || old.ValueSize() != s.ValueSize:
		if t.Kind == CounterTable {
			return inheritNothing
		}
		return inheritRefused
	case t.Copy == nil, t.Kind == StateTable && old.MaxEntries() == s.MaxEntries:
		return inheritTable
	}
	return inheritCopy
}

// makeTable makes a table that is not pinned, from the predecessor's if there is one.
func (o *opening) makeTable(t *Table, s *ebpf.MapSpec) (*ebpf.Map, error) {
	var old *ebpf.Map
	if o.old != nil {
		old = o.old.maps[t.Name]
	}
	switch t.inherits(s, old) {
	case inheritTable:
		return old.Clone()
	case inheritCopy:
		return o.copyTable(t, s, old)
	case inheritRefused:
		return nil, layoutError(o.options.BPFFS, filepath.Join(filepath.Base(o.old.path), o.old.nameOf(t)))
	}
	return ebpf.NewMap(s)
}

// setAside makes the current tables the predecessor's if a table that programs write is resized. Programs
// may use them and write to them at any time.
func (o *opening) setAside() error {
	if o.start != startResize {
		return nil
	}
	present := filepath.Join(o.options.BPFFS, tablesDirectory)
	if err := os.Rename(present, present+asideSuffix); err != nil {
		return err
	}
	return os.Mkdir(present, 0o700)
}

// putBack undoes setAside: nothing uses the new tables yet.
func (o *opening) putBack() error {
	if o.start != startResize {
		return nil
	}
	present := filepath.Join(o.options.BPFFS, tablesDirectory)
	if err := removeTables(present); err != nil {
		return err
	}
	return os.Rename(present+asideSuffix, present)
}

// resizes returns the flags, with their values, by which the pinned tables that programs write have the size that they
// have, where this agent's options require another.
func (d *Datapath) resizes() (flags []string, err error) {
	values := map[string]uint32{}
	for _, t := range d.components.tables() {
		if t.Follow == nil || t.size(d.options.Limits) == 0 {
			continue
		}
		size, err := pinnedSize(d.tablePath(t.Name))
		if err != nil {
			return nil, err
		}
		if size != 0 && size != t.size(d.options.Limits) {
			// The least value for which one table has its size may be too small for another.
			values[t.Limit.Flag] = max(values[t.Limit.Flag], t.limitFor(size))
		}
	}
	for _, flag := range slices.Sorted(maps.Keys(values)) {
		flags = append(flags, fmt.Sprintf("--%s=%d", flag, values[flag]))
	}
	return flags, nil
}

// limitFor returns the least limit for which a table has a size.
func (t *Table) limitFor(size uint32) uint32 {
	var l Limits
	return uint32(sort.Search(maxLimit, func(n int) bool {
		*t.Limit.In(&l) = uint32(n)
		return t.size(l) >= size
	}))
}
