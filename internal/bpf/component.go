// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"iter"
	"regexp"
	"slices"

	"github.com/cilium/ebpf"
)

// A Component is the BPF part of a part of the agent with programs, tables and flags (socket, edge, ...): its objects,
// and where its programs are attached. Loading, pinning, resizing, repair and cleanup use it. Its tables exist as long
// as it is enabled.
type Component struct {
	// Name is unique. It is the prefix of the names of its pinned links at devices.
	Name string
	// Objects reads the BPF objects that the options enable. If there are none, the component is disabled, and
	// Attach removes what an earlier agent has left of it.
	//
	// Errors: Unavailable if this kernel cannot have it, which disables it, too.
	Objects func(*Datapath) ([]*ebpf.CollectionSpec, error)
	// Tables declares the maps of its objects, except those of components before it. Tables are opened, copied and
	// pinned in this order.
	Tables []Table
	// Constants computes the `const volatile` variables of its objects, except those of components before it: of
	// these it has only the ones that it decides.
	Constants map[string]ConstantValue
	// CgroupHooks are attached to the agent's cgroup, in this order.
	CgroupHooks []CgroupHook
	// DeviceHooks are attached to the devices that SetDevices names, in this order.
	DeviceHooks []DeviceHook
	// LoadLate loads the programs of DeviceHooks when the first device needs them: verifying them takes time.
	LoadLate bool

	// LateObject reads the object of a program of DeviceHooks that none of Objects has; nil: they have all.
	LateObject func(program string) (*ebpf.CollectionSpec, error)

	// Former is the name that the component had in earlier versions, if any: what these have attached is removed.
	Former string
	// FilterPriority is that of its filters at tc; 0: componentFilterPriority.
	FilterPriority uint16
	// Conntrack, if it is not nil, reports whether the kernel's conntrack has to be loaded before Objects is
	// called.
	Conntrack func() bool
	// Handover has the programs of DeviceHooks use the tables of an earlier agent while these are migrated; nil:
	// their programs need none.
	Handover *Handover
	// Release, if it is not nil, is called before the programs of the component are detached for good, and of those
	// that use its tables.
	Release func(bpffs string) error

	// The programs that hooks do not describe: in XDP dispatchers, and at pods. Nil: there are none.

	// Attached finds these programs, whoever has attached them.
	Attached func(bpffs string) ([]AttachedProgram, error)
	// Replace replaces those of an earlier agent, after the programs of DeviceHooks.
	Replace func(*Datapath) error
	// Detach detaches all of them, before the programs of DeviceHooks.
	Detach func(bpffs string) error
}

// Unavailable is why a kernel cannot have a component.
type Unavailable string

func (u Unavailable) Error() string { return string(u) }

// AttachedProgram is a program in the kernel, and a description of where it is attached.
type AttachedProgram struct {
	ID ebpf.ProgramID
	At string
}

// lateObjects reads the objects of a program that is not loaded yet.
func (c *Component) lateObjects(d *Datapath, program string) ([]*ebpf.CollectionSpec, error) {
	if c.LateObject == nil {
		return c.Objects(d)
	}
	spec, err := c.LateObject(program)
	return []*ebpf.CollectionSpec{spec}, err
}

// pinnedNames returns the component's pinned tables, in order.
func (c *Component) pinnedNames() (names []string) {
	for i := range c.Tables {
		if c.Tables[i].pinned() {
			names = append(names, c.Tables[i].Name)
		}
	}
	return names
}

// Declared returns the declaration of a table among others.
func Declared(tables []Table, name string) *Table {
	return &tables[slices.IndexFunc(tables, func(t Table) bool { return t.Name == name })]
}

// A componentList is a list of components. A component may use the tables of those before it.
type componentList []*Component

// sections are the global variables of an object (constants.go). Every object may have them. No program of Beeline
// has variables in .bss, which bpf2go needs for some types.
var sections = []Table{{Name: ".rodata", Kind: variableSection}, {Name: ".bss", Kind: variableSection}}

// tables iterates over the tables of all components, in order.
func (l componentList) tables() iter.Seq2[*Component, *Table] {
	return func(yield func(*Component, *Table) bool) {
		for _, c := range l {
			for i := range c.Tables {
				if !yield(c, &c.Tables[i]) {
					return
				}
			}
		}
	}
}

// table returns the declaration of a map, nil if there is none.
func (l componentList) table(name string) *Table {
	for _, t := range l.tables() {
		if t.Name == name {
			return t
		}
	}
	for i := range sections {
		if sections[i].Name == name {
			return &sections[i]
		}
	}
	return nil
}

// owner returns the name of the component that declares a table.
func (l componentList) owner(table string) string {
	for c, t := range l.tables() {
		if t.Name == table {
			return c.Name
		}
	}
	return ""
}

// constant returns the function that computes a constant, nil if it is not declared. The last component that declares
// it decides.
func (l componentList) constant(name string) ConstantValue {
	for _, c := range slices.Backward(l) {
		if value := c.Constants[name]; value != nil {
			return value
		}
	}
	return nil
}

// component returns a component by its name.
func (l componentList) component(name string) (*Component, error) {
	for _, c := range l {
		if c.Name == name {
			return c, nil
		}
	}
	return nil, fmt.Errorf("component %s is not enabled, or not among Options.Components", name)
}

// cgroupHooks returns the hooks of all components, in the order of attachment.
func (l componentList) cgroupHooks() (all []CgroupHook) {
	for _, c := range l {
		all = append(all, c.CgroupHooks...)
	}
	return all
}

// checkDeclared returns an error for a map of an object that no component declares: nothing would pin, size
// or remove it.
func (l componentList) checkDeclared(spec *ebpf.CollectionSpec) error {
	for name := range spec.Maps {
		if l.table(name) == nil {
			return fmt.Errorf("map %s of the BPF object is not declared: add it to the Tables of its component (docs/develop/tables.md)", name)
		}
	}
	return nil
}

// pinName is a part of the names of pins, which must not contain dots. Hyphens separate the parts.
var pinName = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

const pinNameRule = "a name has lower-case letters, digits and underscores, and begins with a letter"

// check returns an error if two components would share a name, a pinned table or the pin of a hook.
func (l componentList) check() error {
	seen := map[string]string{} // owner by name
	take := func(what, owner string) error {
		if other, taken := seen[what]; taken {
			return fmt.Errorf("components %s and %s both have %s", other, owner, what)
		}
		seen[what] = owner
		return nil
	}
	for _, c := range l {
		if !pinName.MatchString(c.Name) {
			return fmt.Errorf("component %q: %s", c.Name, pinNameRule)
		}
		if c.Objects == nil {
			return fmt.Errorf("component %s: Objects is nil: let it return no objects if the component is disabled", c.Name)
		}
		names := []string{"the name " + c.Name}
		for _, table := range c.pinnedNames() {
			names = append(names, "table "+truncated(table)) // recoverTable finds a table by its name in the kernel
		}
		for _, h := range c.CgroupHooks {
			names = append(names, "hook "+h.Name)
		}
		for _, hook := range hookNames(c.DeviceHooks) {
			if !pinName.MatchString(hook) {
				return fmt.Errorf("component %s: hook %q: %s", c.Name, hook, pinNameRule)
			}
			names = append(names, "hook "+c.Name+"-"+hook)
		}
		for _, name := range names {
			if err := take(name, c.Name); err != nil {
				return err
			}
		}
	}
	return nil
}
