// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// load makes the tables of all enabled components, and then loads their programs. Most objects are loaded
// in parallel: most of the time is the verifier's.
func (d *Datapath) load() error {
	d.maps, d.programs = map[string]*ebpf.Map{}, map[string]*ebpf.Program{}
	if err := removeNewTables(d.options.BPFFS); err != nil {
		return err
	}
	if err := d.setAside(); err != nil {
		return err
	}
	var err error
	if d.old, err = d.openPredecessor(); err != nil {
		return err
	}
	pinned := map[string]*ebpf.Map{}
	defer func() { closeMaps(pinned) }()
	var specs []*ebpf.CollectionSpec
	for _, c := range d.components {
		objects, err := c.Objects(d)
		if err != nil {
			return err
		}
		if len(objects) == 0 {
			continue
		}
		d.enabled = append(d.enabled, c)
		if d.old == nil { // else the attached programs use the predecessor's tables
			if err := recoverPins(d.options.BPFFS, c); err != nil {
				return err
			}
		}
		for _, spec := range objects {
			if err := d.loadTables(spec, c, pinned); err != nil {
				return err
			}
		}
		if !c.LoadLate {
			specs = append(specs, objects...)
		}
	}
	if d.old != nil && d.old.layout.upgrade != nil && len(pinned) == 0 {
		if err := d.old.layout.upgrade(d); err != nil {
			return fmt.Errorf("convert the tables of %s: %w", d.old.path, err)
		}
	}
	if err := d.loadPrograms(specs); err != nil {
		return err
	}
	d.fresh = len(pinned) == 0 && d.old == nil
	if err := d.pinTables(pinned); err != nil {
		return err
	}
	return d.removeUndeclaredTables()
}

// loadTables uses the pinned tables of an object, adds them to pinned, and makes the others.
func (d *Datapath) loadTables(spec *ebpf.CollectionSpec, c *Component, pinned map[string]*ebpf.Map) error {
	if err := d.prepareMaps(spec); err != nil {
		return err
	}
	found, err := d.pinnedTables(spec, c)
	maps.Copy(pinned, found)
	if err != nil {
		return err
	}
	return d.makeTables(spec, pinned)
}

func closeMaps(all map[string]*ebpf.Map) {
	for _, m := range all {
		m.Close()
	}
}

// makeTables uses the pinned tables of an object, whose maps are prepared, and makes the others.
func (d *Datapath) makeTables(spec *ebpf.CollectionSpec, pinned map[string]*ebpf.Map) (err error) {
	for name, s := range spec.Maps {
		t := d.components.table(name)
		if !t.pinned() || d.maps[name] != nil {
			continue
		}
		m := pinned[name]
		if m != nil {
			m, err = m.Clone()
		} else if m, err = d.inherit(t, s); m == nil && err == nil {
			m, err = ebpf.NewMap(s)
		}
		if err != nil {
			return fmt.Errorf("create table %s: %w", name, err)
		}
		d.maps[name] = m
		if t.Init == nil {
			continue
		}
		if err := t.Init(m); err != nil {
			return fmt.Errorf("prepare table %s: %w", name, err)
		}
	}
	return nil
}

// loadPrograms loads the programs of objects, for d.program.
func (d *Datapath) loadPrograms(specs []*ebpf.CollectionSpec) error {
	loaded, err := d.loadObjects(specs)
	d.loading.Lock()
	defer d.loading.Unlock()
	maps.Copy(d.programs, loaded)
	return err
}

// readsModules reports whether loading an object reads the BTF of modules: it calls functions of the kernel that are
// no helpers, or accesses its structures. Reading a module's BTF while others read the kernel's is a data race in the
// library (v0.22.0).
func readsModules(spec *ebpf.CollectionSpec) bool {
	if kernelHas()[withoutModules] {
		return false
	}
	for _, p := range spec.Programs {
		if slices.ContainsFunc(p.Instructions, func(ins asm.Instruction) bool {
			return ins.IsKfuncCall() || btf.CORERelocationMetadata(&ins) != nil
		}) {
			return true
		}
	}
	return false
}

// loadObjects loads the programs of objects with the existing tables. If it fails it returns the programs
// that could be loaded.
func (d *Datapath) loadObjects(specs []*ebpf.CollectionSpec) (map[string]*ebpf.Program, error) {
	shared := make([]map[string]*ebpf.Map, len(specs))
	for i, spec := range specs {
		var err error
		if shared[i], err = d.sharedTables(spec); err != nil {
			return nil, err
		}
		if err := d.setConstants(spec); err != nil {
			return nil, err
		}
		fitBTF(spec)
	}
	var group sync.WaitGroup
	loaded, failed := make([]*ebpf.Collection, len(specs)), make([]error, len(specs))
	load := func(i int) {
		loaded[i], failed[i] = ebpf.NewCollectionWithOptions(specs[i], ebpf.CollectionOptions{MapReplacements: shared[i], Cache: kernelBTF.Load()})
	}
	var alone []int
	for i, spec := range specs {
		if readsModules(spec) {
			alone = append(alone, i)
			continue
		}
		group.Go(func() { load(i) })
	}
	group.Wait()
	for _, i := range alone {
		load(i)
	}
	programs := map[string]*ebpf.Program{}
	for _, c := range loaded {
		if c == nil {
			continue
		}
		for name := range c.Programs {
			programs[name] = c.DetachProgram(name)
		}
		c.Close()
	}
	if err := errors.Join(failed...); err != nil {
		return programs, fmt.Errorf("load the programs: %w", err)
	}
	return programs, nil
}

// program returns a loaded program by name, nil if there is none.
func (d *Datapath) program(name string) *ebpf.Program {
	d.loading.Lock()
	defer d.loading.Unlock()
	return d.programs[name]
}
