// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
)

// tablesDirectory bears the version of the tables' layout (bpf/lib/types.h). It
// changes with anything that an older or newer agent would read wrongly.
const tablesDirectory = "tables_v7"

// TablePath is where a table is pinned.
func TablePath(bpffs, name string) string { return filepath.Join(bpffs, tablesDirectory, name) }

func (d *Datapath) tablePath(name string) string {
	return TablePath(d.options.BPFFS, name)
}

// checkLayout refuses tables of another version. A directory without pins is no table: an
// agent of another version that was refused may have left it.
func checkLayout(bpffs string) error {
	other, err := otherLayout(bpffs)
	if other != "" {
		return layoutError(bpffs, other)
	}
	return err
}

// otherLayout is a directory of tables of another version that has pins, empty if there is
// none.
func otherLayout(bpffs string) (string, error) {
	pins, err := filepath.Glob(filepath.Join(bpffs, "tables_v*", "*"))
	for _, pin := range pins {
		if name := filepath.Base(filepath.Dir(pin)); name != tablesDirectory {
			return name, nil
		}
	}
	return "", err
}

// layoutError is for pins that this version cannot go on with.
func layoutError(bpffs, what string) error {
	return fmt.Errorf("pinned %s has another layout than this version of Beeline (%s): start the version that pinned it, which serves on; "+
		"or run `beeline cleanup --bpffs %s` and start this one: Services are not translated in between",
		what, tablesDirectory, bpffs)
}

// pinnedTables finds the tables of an earlier agent that the programs can go
// on with, as they are or copied to another size.
func (d *Datapath) pinnedTables(spec *ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	found := map[string]*ebpf.Map{}
	for name, s := range spec.Maps {
		if strings.HasPrefix(name, ".") {
			continue // constants of the object: new with each load
		}
		// What an agent left that was killed while it changed a table's size.
		if err := os.Remove(d.tablePath(name) + "_new"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return found, err
		}
		m, err := ebpf.LoadPinnedMap(d.tablePath(name), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return found, fmt.Errorf("open pinned table %s: %w", name, err)
		}
		counters := isCounters(name)
		if counters && s.Compatible(m) == nil {
			found[name] = m
			continue
		}
		if !counters && (m.Type() != s.Type || m.KeySize() != s.KeySize || m.ValueSize() != s.ValueSize) {
			m.Close()
			return found, layoutError(d.options.BPFFS, "table "+name)
		}
		if m.MaxEntries() != s.MaxEntries && s.MaxEntries != 0 || counters {
			other, err := d.replace(name, s, m)
			m.Close()
			if err != nil {
				return found, err
			}
			m = other
		}
		found[name] = m
	}
	return found, nil
}

// OpenTables opens the pinned tables of a directory for reading what they hold,
// whether an agent is running there or not.
func OpenTables(bpffs string) (*Tables, error) {
	maps := map[string]*ebpf.Map{}
	for name := range (Limits{}).entries() {
		m, err := ebpf.LoadPinnedMap(TablePath(bpffs, name), nil)
		if errors.Is(err, os.ErrNotExist) {
			if other, _ := otherLayout(bpffs); other != "" {
				return nil, fmt.Errorf("pinned %s under %s has another layout than this version of Beeline (%s): use the command of the version that pinned it", other, bpffs, tablesDirectory)
			}
			return nil, fmt.Errorf("no tables are pinned under %s: name the agent's --bpffs; if it is this one, no agent has run yet", bpffs)
		}
		if err != nil {
			return nil, fmt.Errorf("open pinned table %s under %s: %w", name, bpffs, err)
		}
		maps[name] = m
	}
	tables, err := NewTables(maps)
	if err != nil {
		return nil, err
	}
	balancers, err := ebpf.LoadPinnedMap(TablePath(bpffs, EdgeTCMapBalancers), nil)
	if errors.Is(err, os.ErrNotExist) {
		return tables, nil
	}
	tables.Balancers = kernelHash[NetworkKey, Balancer]{EdgeTCMapBalancers, balancers}
	return tables, err
}
