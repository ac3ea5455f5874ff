// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// An object is a BPF object of an enabled component.
type object struct {
	component *Component
	spec      *ebpf.CollectionSpec
}

// readObjects reads the objects of all components. Those with objects are enabled.
func (o *opening) readObjects() error {
	for _, c := range o.components {
		specs, err := c.Objects(o.Datapath)
		if lacks := Unavailable(""); errors.As(err, &lacks) {
			o.Unavailable[c.Name] = string(lacks)
		} else if err != nil {
			return err
		}
		for _, spec := range specs {
			if err := o.prepareMaps(spec); err != nil {
				return err
			}
			o.objects = append(o.objects, object{c, spec})
		}
		if len(specs) > 0 {
			o.enabled = append(o.enabled, c)
		}
	}
	return nil
}

// openTables opens the pinned tables of the objects, and makes the others.
func (o *opening) openTables() error {
	for _, object := range o.objects {
		for _, t := range o.components.tables() {
			s := object.spec.Maps[t.Name]
			if s == nil || !t.pinned() || o.maps[t.Name] != nil {
				continue
			}
			if err := o.openTable(t, s); err != nil {
				return err
			}
		}
	}
	if o.start.makesTables() && o.old.layout.upgrade != nil {
		if err := o.old.layout.upgrade(o.Datapath); err != nil {
			return fmt.Errorf("convert the tables of %s: %w", o.old.path, err)
		}
	}
	return nil
}

// openTable opens a pinned table, or makes it, and prepares it.
func (o *opening) openTable(t *Table, s *ebpf.MapSpec) error {
	m, err := o.loadPinned(t)
	if errors.Is(err, os.ErrNotExist) {
		o.made = append(o.made, t.Name)
		if m, err = o.makeTable(t, s); err != nil {
			err = fmt.Errorf("create table %s: %w", t.Name, err)
		}
	} else if err == nil {
		m, err = o.fitPinned(t, s, m)
	}
	if err != nil {
		return err
	}
	o.maps[t.Name] = m
	if t.Init == nil {
		return nil
	}
	if err := t.Init(m); err != nil {
		return fmt.Errorf("prepare table %s: %w", t.Name, err)
	}
	return nil
}

func closeMaps(all map[string]*ebpf.Map) {
	for _, m := range all {
		m.Close()
	}
}

// loadEarly loads the programs of all components without LoadLate. Most objects are loaded in parallel: most of the
// time is the verifier's.
func (o *opening) loadEarly() error {
	var specs []*ebpf.CollectionSpec
	for _, object := range o.objects {
		if !object.component.LoadLate {
			specs = append(specs, object.spec)
		}
	}
	return o.LoadPrograms(specs...)
}

// LoadPrograms loads the programs of objects, for Program.
func (d *Datapath) LoadPrograms(specs ...*ebpf.CollectionSpec) error {
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
		if shared[i], err = d.Share(spec); err != nil {
			return nil, err
		}
		fitBTF(spec)
	}
	var group sync.WaitGroup
	loaded, failed := make([]*ebpf.Collection, len(specs)), make([]error, len(specs))
	load := func(i int) {
		loaded[i], failed[i] = ebpf.NewCollectionWithOptions(specs[i], ebpf.CollectionOptions{MapReplacements: shared[i], Cache: KernelBTF()})
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

// Load loads the programs of an object of an enabled component, which are the caller's.
func (d *Datapath) Load(spec *ebpf.CollectionSpec) (map[string]*ebpf.Program, error) {
	if err := d.prepareMaps(spec); err != nil {
		return nil, err
	}
	return d.loadObjects([]*ebpf.CollectionSpec{spec})
}

// Program returns a loaded program by name, nil if there is none.
func (d *Datapath) Program(name string) *ebpf.Program {
	d.loading.Lock()
	defer d.loading.Unlock()
	return d.programs[name]
}
