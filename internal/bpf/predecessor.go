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
	// names are the names of tables there, by the names of this version.
	names map[string]string
	// upgrade converts copies of its tables to the layout of this version; nil: they already have it.
	upgrade func(*Datapath) error
}

// namesBefore9 are the names of tables until version 8 of the layout.
var namesBefore9 = map[string]string{
	SockMapConnectedPrev:      "connected_before",
	SockMapUdpFlowsOverflow:   "more_udp_flows",
	SockMapBindPending:        "unnamed_ports",
	SockMapSocketsToAbort:     "doomed",
	EdgeTCMapPrefilters:       "doors",
	EdgeTCMapDsrCheckReplies:  "dsr_check_answers",
	EdgeTCMapConntrack:        "tracks",
	EdgeTCMapConntrackTags:    "tracks_tags",
	EdgeTCMapUnreplied:        "half_open",
	EdgeTCMapUnrepliedTags:    "half_open_tags",
	EdgeTCMapServiceUntracked: "service_sent",
	EdgeTCMapServiceCollected: "service_gone",
}

// layouts are the layouts that this version migrates, by directory name. Until version 7 each set of a
// conntrack table began with its tags: there is no table of tags.
var layouts = map[string]layout{
	"tables_v7":  {names: namesBefore9, upgrade: listsSince10},
	"tables_v8":  {names: namesBefore9, upgrade: listsSince10},
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

// openPredecessor opens the tables of the earlier agent, if there are any to migrate; nil if there are
// none.
func (d *Datapath) openPredecessor() (*predecessor, error) {
	bpffs := d.options.BPFFS
	others := otherLayouts(bpffs)
	if len(others) == 0 {
		return nil, nil
	}
	if len(others) > 1 {
		return nil, layoutError(bpffs, strings.Join(others, ", "))
	}
	p := &predecessor{path: filepath.Join(bpffs, others[0]), maps: map[string]*ebpf.Map{}}
	p.layout = layouts[strings.TrimSuffix(others[0], asideSuffix)]
	for _, t := range d.components.tables() {
		if !t.pinned() {
			continue
		}
		m, err := ebpf.LoadPinnedMap(filepath.Join(p.path, p.nameOf(t.Name)), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			p.close()
			return nil, fmt.Errorf("open pinned table %s of %s: %w", p.nameOf(t.Name), others[0], err)
		}
		p.maps[t.Name] = m
	}
	return p, nil
}

func (p *predecessor) nameOf(table string) string {
	if name := p.layout.names[table]; name != "" {
		return name
	}
	return table
}

func (p *predecessor) close() {
	if p != nil {
		closeMaps(p.maps)
	}
}

// pinTables pins the tables that this agent has made. Beside a predecessor's tables they appear atomically:
// if some were copies and some were not, the next agent would find inconsistent tables.
func (d *Datapath) pinTables(pinned map[string]*ebpf.Map) error {
	directory := tablesDirectory
	staged := d.old != nil && len(pinned) == 0
	if staged {
		directory = newTables
		if err := os.Mkdir(filepath.Join(d.options.BPFFS, newTables), 0o700); err != nil {
			return err
		}
	}
	for name, m := range d.maps {
		if pinned[name] != nil {
			continue
		}
		if err := pinCopy(m, filepath.Join(d.options.BPFFS, directory, name)); err != nil {
			return fmt.Errorf("pin table %s: %w", name, err)
		}
	}
	if !staged {
		return nil
	}
	// os.Rename refuses an existing directory; the kernel replaces an empty one.
	if err := unix.Rename(filepath.Join(d.options.BPFFS, newTables), filepath.Join(d.options.BPFFS, tablesDirectory)); err != nil {
		return fmt.Errorf("move the new tables to %s: %w", tablesDirectory, err)
	}
	return nil
}

// removeNewTables removes what an agent left that was killed in pinTables.
func removeNewTables(bpffs string) error {
	err := (&predecessor{path: filepath.Join(bpffs, newTables)}).remove()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// remove removes the directory. Tables that no program uses any more are freed.
func (p *predecessor) remove() error {
	pins, err := filepath.Glob(filepath.Join(p.path, "*"))
	if err != nil {
		return err
	}
	for _, pin := range pins {
		if err := os.Remove(pin); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return os.Remove(p.path)
}

// inherit makes this version's table from the earlier agent's; nil if there is none. A table that programs
// write is shared if it has the same layout and size, else migrate copies it. Socket storage, which the
// kernel cannot copy, is always shared: its layout never changes.
func (d *Datapath) inherit(t *Table, s *ebpf.MapSpec) (*ebpf.Map, error) {
	if d.old == nil || d.old.maps[t.Name] == nil {
		return nil, nil
	}
	old := d.old.maps[t.Name]
	same := old.Type() == s.Type && old.KeySize() == s.KeySize && old.ValueSize() == s.ValueSize
	switch {
	case t.Follow != nil || t.Kind == CounterTable && !same:
		return nil, nil
	case !same:
		return nil, layoutError(d.options.BPFFS, filepath.Join(filepath.Base(d.old.path), d.old.nameOf(t.Name)))
	case t.Copy == nil, t.Kind == StateTable && old.MaxEntries() == s.MaxEntries:
		return old.Clone()
	}
	m, err := ebpf.NewMap(s)
	if err != nil {
		return nil, err
	}
	if err := t.Copy(d, m, old); err != nil {
		m.Close()
		return nil, resizeError(t, s, old, err)
	}
	return m, nil
}

// setAside makes the current tables the predecessor's if a table that programs write is resized. Programs
// may use them and write to them at any time.
func (d *Datapath) setAside() error {
	resized, err := d.resizes()
	if err != nil || len(resized) == 0 {
		return err
	}
	present := filepath.Join(d.options.BPFFS, tablesDirectory)
	if len(otherLayouts(d.options.BPFFS)) == 0 {
		if err := os.Rename(present, present+asideSuffix); err != nil {
			return err
		}
		d.aside = true
		return os.Mkdir(present, 0o700)
	}
	return fmt.Errorf("an agent was killed while it changed the size of tables: start one with the flags of that one, %s, and change them after that", strings.Join(resized, " "))
}

// putBack undoes setAside if Open fails: nothing uses the new tables yet.
func (d *Datapath) putBack() error {
	if !d.aside {
		return nil
	}
	present := filepath.Join(d.options.BPFFS, tablesDirectory)
	if err := (&predecessor{path: present}).remove(); err != nil {
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
