// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// A DryProgram is a second instance of a program, with the pinned tables and the constants of the attached one. It does
// not change the pinned tables.
type DryProgram struct {
	Program    string
	Object     func() (*ebpf.CollectionSpec, error)
	Components []*Component // which declare the tables of the object
	Loaded     *ebpf.Collection

	closers []func()
}

// Close releases the program.
func (d *DryProgram) Close() {
	for _, f := range d.closers {
		f()
	}
}

// Load loads the program like an attached one, with the tables of a bpffs directory.
func (d *DryProgram) Load(bpffs string, attached ebpf.ProgramID) error {
	spec, err := d.Object()
	if err != nil {
		return err
	}
	spec.Programs = map[string]*ebpf.ProgramSpec{d.Program: spec.Programs[d.Program]}
	if err := CopyConstants(spec, attached); err != nil {
		return err
	}
	if err := spec.Variables[SockVarDryRun].Set(uint8(1)); err != nil {
		return err
	}
	fitBTF(spec)
	components := componentList(d.Components)
	if err := components.checkDeclared(spec); err != nil {
		return err
	}
	tables := map[string]*ebpf.Map{}
	for name, s := range spec.Maps {
		if t := components.table(name); !t.pinned() || t.Kind == CounterTable {
			continue // a dry run does not count, and the counters of another version may have another size
		}
		m, err := ebpf.LoadPinnedMap(TablePath(bpffs, name), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue // of another version; the dry run gets an empty one
		}
		if err != nil {
			return fmt.Errorf("open pinned table %s under %s: %w", name, bpffs, err)
		}
		d.closers = append(d.closers, func() { m.Close() })
		tables[name], s.MaxEntries = m, m.MaxEntries()
	}
	d.Loaded, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: tables})
	if err != nil {
		return err
	}
	d.closers = append(d.closers, d.Loaded.Close)
	return nil
}

// Differs reports whether the program differs from the attached one, by the hash of their instructions.
func (d *DryProgram) Differs(attached ebpf.ProgramID) (bool, error) {
	own, err := d.Loaded.Programs[d.Program].Info()
	if err != nil {
		return false, err
	}
	running, err := programInfo(attached)
	if err != nil {
		return false, err
	}
	return own.Tag != running.Tag, nil
}

// CopyConstants copies the constants of an attached program to a spec.
func CopyConstants(spec *ebpf.CollectionSpec, attached ebpf.ProgramID) error {
	info, err := programInfo(attached)
	if err != nil {
		return err
	}
	section, contents, err := readConstants(info)
	if err != nil {
		return fmt.Errorf("the constants of the attached program: %w", err)
	}
	for _, v := range section.Vars {
		name := v.Type.TypeName()
		to := spec.Variables[name]
		if to == nil || to.Size() != v.Size || int(v.Offset+v.Size) > len(contents) {
			continue
		}
		if err := to.Set(contents[v.Offset : v.Offset+v.Size]); err != nil {
			return fmt.Errorf("the constant %s: %w", name, err)
		}
	}
	return nil
}

// constantsName is the section and the map of constants.
const constantsName = ".rodata"

// readConstants finds the constants of a program, and their layout.
func readConstants(info *ebpf.ProgramInfo) (*btf.Datasec, []byte, error) {
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return nil, nil, err
		}
		section, contents, err := constantsIn(m)
		m.Close()
		if section != nil || err != nil {
			return section, contents, err
		}
	}
	return nil, nil, errors.New("not found")
}

// constantsIn reads a map if it has the constants.
func constantsIn(m *ebpf.Map) (*btf.Datasec, []byte, error) {
	info, err := m.Info()
	if err != nil || info.Name != constantsName {
		return nil, nil, err
	}
	id, ok := info.BTFID()
	if !ok {
		return nil, nil, errors.New("they have no BTF")
	}
	handle, err := btf.NewHandleFromID(id)
	if err != nil {
		return nil, nil, err
	}
	defer handle.Close()
	types, err := handle.Spec(nil)
	if err != nil {
		return nil, nil, err
	}
	var section *btf.Datasec
	if err := types.TypeByName(constantsName, &section); err != nil {
		return nil, nil, err
	}
	contents, err := m.LookupBytes(uint32(0))
	return section, contents, err
}
