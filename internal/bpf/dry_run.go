// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"beeline.io/beeline/internal/node/netdev"
)

// Explanation is the result of a dry run.
type Explanation = EdgeTCExplanation

// Key returns the key of the frontend that was found; zero: none.
func (e *EdgeTCExplanation) Key() FrontendKey {
	return FrontendKey{Address: Address(e.Frontend.Address), Port: e.Frontend.Port, Protocol: e.Frontend.Protocol}
}

// Next returns the address of the next hop.
func (e *EdgeTCExplanation) Next() netip.Addr { return Address(e.NextHop).Addr() }

// A DryRun runs a program of the edge on synthetic packets.
type DryRun struct {
	// Other reports that the attached program is of another version.
	Other bool

	hook EdgeHook
	dryProgram
}

// A dryProgram is a second instance of a program, with the pinned tables and the constants of the attached
// one. It does not change the pinned tables.
type dryProgram struct {
	program string
	object  func() (*ebpf.CollectionSpec, error)
	loaded  *ebpf.Collection
	closers []func()
}

// OpenDryRun loads the program of a hook with the tables of a bpffs directory, for the devices of this
// network namespace. The error is os.ErrNotExist if it is attached to none.
func OpenDryRun(bpffs string, hook EdgeHook) (*DryRun, error) {
	attached, err := EdgeAttachments(bpffs)
	if err != nil {
		return nil, err
	}
	attached = slices.DeleteFunc(attached, func(a EdgeAttachment) bool { return a.Hook != hook || a.Detached })
	if len(attached) == 0 {
		return nil, fmt.Errorf("no program of %s is attached by pins under %s to a device of this network namespace: "+
			"set --pins to the agent's, and run this in the agent's network namespace: %w", hook, bpffs, os.ErrNotExist)
	}
	// A test run needs an Ethernet header, also for a device without MAC addresses. So the program for Ethernet
	// runs, which decides alike, and its version is compared at a device that has it.
	i := max(0, slices.IndexFunc(attached, func(a EdgeAttachment) bool { return !netdev.IsL3(a.Device) }))
	d := &DryRun{hook: hook, dryProgram: dryProgram{program: hook.declared().Program, object: LoadEdgeTC}}
	if hook == EdgeXDP {
		d.object = LoadEdgeXDP
	}
	if attached[i].Chain != nil {
		d.program, d.object = XDPSlotProgBeelineEdge, LoadXDPSlot
	}
	id := ebpf.ProgramID(attached[i].ProgramID)
	if err = d.load(bpffs, id); err == nil && !netdev.IsL3(attached[i].Device) {
		d.Other, err = d.differs(id)
	}
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("load the program of %s for a dry run: %w", hook, err)
	}
	return d, nil
}

// Close releases the program.
func (d *dryProgram) Close() {
	for _, f := range d.closers {
		f()
	}
}

func (d *dryProgram) load(bpffs string, attached ebpf.ProgramID) error {
	spec, err := d.object()
	if err != nil {
		return err
	}
	spec.Programs = map[string]*ebpf.ProgramSpec{d.program: spec.Programs[d.program]}
	if err := copyConstants(spec, attached); err != nil {
		return err
	}
	if err := spec.Variables[EdgeTCVarDryRun].Set(uint8(1)); err != nil {
		return err
	}
	fitBTF(spec)
	if err := OwnComponents().checkDeclared(spec); err != nil {
		return err
	}
	tables := map[string]*ebpf.Map{}
	for name, s := range spec.Maps {
		if t := OwnComponents().table(name); !t.pinned() || t.Kind == CounterTable {
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
	d.loaded, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: tables})
	if err != nil {
		return err
	}
	d.closers = append(d.closers, d.loaded.Close)
	return nil
}

// differs reports whether the program differs from the attached one, by the hash of their instructions.
func (d *dryProgram) differs(attached ebpf.ProgramID) (bool, error) {
	own, err := d.loaded.Programs[d.program].Info()
	if err != nil {
		return false, err
	}
	running, err := programInfo(attached)
	if err != nil {
		return false, err
	}
	return own.Tag != running.Tag, nil
}

// copyConstants copies the constants of an attached program to a spec.
func copyConstants(spec *ebpf.CollectionSpec, attached ebpf.ProgramID) error {
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

// AttachedTimeouts returns the timeouts of conntrack entries that the attached programs of the edge have.
//
// Errors: os.ErrNotExist if none is attached to a device of this network namespace.
func AttachedTimeouts(bpffs string) (timeouts *ConntrackTimeouts, err error) {
	attached, err := EdgeAttachments(bpffs)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(attached, func(a EdgeAttachment) bool { return !a.Detached && a.Hook != EdgeXDP })
	if i < 0 {
		return nil, fmt.Errorf("no program of the edge is attached to a device of this network namespace: %w", os.ErrNotExist)
	}
	spec, err := LoadEdgeTC()
	if err != nil {
		return nil, err
	}
	if err := copyConstants(spec, ebpf.ProgramID(attached[i].ProgramID)); err != nil {
		return nil, err
	}
	timeouts = new(ConntrackTimeouts)
	return timeouts, spec.Variables[EdgeTCVarCtTimeouts].Get(timeouts)
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

// Run makes a device receive a frame, or send one that arrived at device `from`, 0 for one of the node's
// own. The frame begins with an Ethernet header. The calling thread must be in the device's network
// namespace.
func (d *DryRun) Run(device, from int, frame []byte) (*Explanation, error) {
	if err := d.clear(); err != nil {
		return nil, err
	}
	options := ebpf.RunOptions{Data: frame}
	if d.hook == EdgeXDP {
		// struct xdp_md: data_end, ingress_ifindex.
		options.Context = [6]uint32{1: uint32(len(frame)), 3: uint32(device)}
	} else {
		// struct __sk_buff: ingress_ifindex, ifindex.
		options.Context = [48]uint32{9: uint32(from), 10: uint32(device)}
	}
	if _, err := d.loaded.Programs[d.program].Run(&options); err != nil {
		return nil, fmt.Errorf("run the program of %s on a packet of device %d: %w", d.hook, device, err)
	}
	var perCPU []Explanation
	if err := d.loaded.Maps[EdgeTCMapExplanations].Lookup(uint32(0), &perCPU); err != nil {
		return nil, err
	}
	for _, e := range perCPU {
		if e.Done != 0 {
			return &e, nil
		}
	}
	return &Explanation{}, nil
}

// clear resets the state of the previous run.
func (d *DryRun) clear() error {
	for _, name := range []string{EdgeTCMapExplanations, EdgeTCMapScratch} {
		m := d.loaded.Maps[name]
		if err := m.Put(uint32(0), zeros(m)); err != nil {
			return fmt.Errorf("clear %s: %w", name, err)
		}
	}
	return nil
}
