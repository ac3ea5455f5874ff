// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
)

// tablesDirectory contains the version of the tables' layout (bpf/lb/types.h). The version changes with
// anything that an older or newer agent would misread.
var tablesDirectory = "tables_v10"

// LayoutVersion returns the version of the tables' layout, such as "v10".
func LayoutVersion() string { return strings.TrimPrefix(tablesDirectory, "tables_") }

// pinDirectories are the subdirectories of the bpffs directory.
var pinDirectories = []string{tablesDirectory, "links", "programs"}

// TablePath returns the path of a table's pin.
func TablePath(bpffs, name string) string { return filepath.Join(bpffs, tablesDirectory, name) }

func (d *Datapath) tablePath(name string) string {
	return TablePath(d.options.BPFFS, name)
}

// loadPinned opens the table that an earlier agent has pinned.
//
// Errors: os.ErrNotExist if it is not pinned.
func (d *Datapath) loadPinned(t *Table) (*ebpf.Map, error) {
	// A copy from an agent that was killed while it resized the table.
	if err := os.Remove(d.tablePath(t.Name) + "_new"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	m, err := ebpf.LoadPinnedMap(d.tablePath(t.Name), nil)
	if err != nil {
		return nil, fmt.Errorf("open pinned table %s: %w", t.Name, err)
	}
	return m, nil
}

// removeUndeclaredTables removes the pins of tables that only an earlier version of Beeline with the same layout has.
// Programs of it that are still attached keep them.
func (d *Datapath) removeUndeclaredTables() error {
	pins, err := filepath.Glob(d.tablePath("*"))
	for _, pin := range pins {
		if d.components.table(strings.TrimSuffix(filepath.Base(pin), "_new")) == nil { // _new: pinCopy
			err = errors.Join(err, os.Remove(pin))
		}
	}
	return err
}

// fitPinned returns a pinned table, or its replacement if it does not have the layout or size of the object's map.
// It closes the pinned one if it does not return it.
func (d *Datapath) fitPinned(t *Table, s *ebpf.MapSpec, m *ebpf.Map) (*ebpf.Map, error) {
	var fits bool
	if t.Kind == CounterTable {
		fits = s.Compatible(m) == nil
	} else if m.Type() != s.Type || m.KeySize() != s.KeySize || m.ValueSize() != s.ValueSize {
		m.Close()
		return nil, layoutError(d.options.BPFFS, "table "+t.Name)
	} else {
		fits = m.MaxEntries() == s.MaxEntries
	}
	if fits {
		return m, nil
	}
	defer m.Close()
	return d.replace(t, s, m)
}

// OpenPinned opens pinned tables. With an error it also returns those before the one that cannot be opened.
func OpenPinned(bpffs string, names ...string) (map[string]*ebpf.Map, error) {
	maps := map[string]*ebpf.Map{}
	for _, name := range names {
		m, err := ebpf.LoadPinnedMap(TablePath(bpffs, name), nil)
		if err != nil {
			return maps, fmt.Errorf("open pinned table %s under %s: %w", name, bpffs, err)
		}
		maps[name] = m
	}
	return maps, nil
}

// OpenTables opens the pinned tables of a directory for reading. An agent need not run there.
func OpenTables(bpffs string) (*Tables, error) {
	socket := Socket()
	names := slices.DeleteFunc(socket.pinnedNames(), func(name string) bool {
		return (componentList{socket}).table(name).size(DefaultLimits) == 0 || // socket storage and counters, which Tables lacks
			name == SockMapPrefilters // an earlier version without edge has none
	})
	maps, err := OpenPinned(bpffs, names...)
	if others := otherLayouts(bpffs); errors.Is(err, os.ErrNotExist) && len(others) > 0 {
		return nil, fmt.Errorf("pinned %s under %s has another layout than this version of Beeline (%s): use the command of the version that pinned it, or start the agent of this version, which migrates the tables", others[0], bpffs, tablesDirectory)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("no tables are pinned under %s: set --pins to the agent's; if it is, no agent has run yet", bpffs)
	}
	if err != nil {
		return nil, err
	}
	tables, err := NewTables(maps)
	if err != nil {
		return nil, err
	}
	balancers, err := ebpf.LoadPinnedMap(TablePath(bpffs, EdgeTCMapBalancers), nil)
	if errors.Is(err, os.ErrNotExist) {
		return tables, nil
	}
	tables.Balancers = kernelHash[NetworkKey, Balancer]{name: EdgeTCMapBalancers, m: balancers}
	return tables, err
}
