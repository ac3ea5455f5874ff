// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"hash/fnv"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf/xdpdispatch"
)

// EdgePriority is the edge's priority among the XDP programs of a device: programs without a priority of
// their own (50) run before it, so that filters see all packets.
const EdgePriority = 100

// slotName returns the name of the edge's program in dispatchers. It distinguishes the agents of several
// bpffs directories, and has 15 characters, as many as the kernel keeps.
func slotName(bpffs string) string {
	h := fnv.New32a()
	h.Write([]byte(bpffs))
	return fmt.Sprintf("beeline_%07x", h.Sum32()&0xfffffff)
}

// joinDispatcher makes the device's dispatcher run the edge's current program in place of an earlier
// agent's; it makes a dispatcher if the device has no XDP program. `mode` is nl.XDP_ATTACHED_DRV or the
// like.
func (d EdgeKernel) joinDispatcher(device int, mode uint32) ([]xdpdispatch.ChainProgram, error) {
	if err := d.canShare(); err != nil {
		return nil, err
	}
	return d.joinEdge(device, mode)
}

// canShare returns an error if the kernel does not support dispatchers.
func (d EdgeKernel) canShare() error {
	if err := d.replacement(); err != nil {
		return fmt.Errorf("XDP programs cannot share a device on this kernel, which does not support or allow programs that replace functions (%v): remove --edge-xdp-dispatcher if it is set", err)
	}
	return nil
}

// An ExclusiveXDPError is the reason why the edge is attached to a device's XDP hook by itself, not in a
// dispatcher as requested. It serves there.
type ExclusiveXDPError struct{ reason error }

func (e *ExclusiveXDPError) Error() string {
	return fmt.Sprintf("Beeline is alone there, and not in a dispatcher: %v", e.reason)
}

func (e *ExclusiveXDPError) Unwrap() error { return e.reason }

// makeDispatcher makes a dispatcher with the edge at a device that has none. The edge's own link must be
// detached for that; it stays, or is restored, if a dispatcher is not possible.
func (d EdgeKernel) makeDispatcher(device int, mode uint32, alone func() error) (chain []xdpdispatch.ChainProgram, err error) {
	if err = d.canShare(); err == nil {
		if err = d.DetachEdge(device, EdgeXDP); err != nil {
			return nil, err
		}
		chain, err = d.joinEdge(device, mode)
	}
	if err == nil {
		return chain, nil
	}
	if failed := alone(); failed != nil {
		return nil, failed
	}
	return nil, &ExclusiveXDPError{err}
}

// loadSlot loads the edge's program so that it can replace a function: this one, and equivalent ones in
// other dispatchers.
func (d EdgeKernel) loadSlot(target *ebpf.Program, function string) (*ebpf.Program, error) {
	spec, err := LoadXDPSlot()
	if err != nil {
		return nil, err
	}
	p := spec.Programs[XDPSlotProgBeelineEdge]
	main := *btf.FuncMetadata(&p.Instructions[0]) // tools show its name as the program's
	main.Name = slotName(d.BPFFS())
	p.Instructions[0] = btf.WithFuncMetadata(p.Instructions[0], &main)
	p.Name, p.Type, p.AttachType, p.AttachTarget, p.AttachTo = slotName(d.BPFFS()), ebpf.Extension, ebpf.AttachNone, target, function
	if err := d.LoadPrograms(spec); err != nil {
		return nil, err
	}
	return d.Program(XDPSlotProgBeelineEdge), nil
}

// inDispatchers is the edge's program as a client of dispatchers. It can leave them; joining needs its program.
func inDispatchers(bpffs string) *xdpdispatch.Client {
	return &xdpdispatch.Client{
		Name: slotName(bpffs), Priority: EdgePriority, Flags: unix.BPF_F_XDP_HAS_FRAGS,
		Pins: filepath.Join(bpffs, "programs"),
	}
}

// joinEdge is joinDispatcher for a kernel that supports it.
func (d EdgeKernel) joinEdge(device int, mode uint32) ([]xdpdispatch.ChainProgram, error) {
	c := inDispatchers(d.BPFFS())
	c.Program = func() *ebpf.Program { return d.Program(XDPSlotProgBeelineEdge) }
	c.Load = d.loadSlot
	return c.Join(device, mode)
}

// dispatcherAttachments finds a bpffs directory's programs in the dispatchers of this
// network namespace.
func dispatcherAttachments(bpffs string) (all []EdgeAttachment, _ error) {
	found, err := inDispatchers(bpffs).Attachments()
	for _, a := range found {
		all = append(all, EdgeAttachment{Device: a.Device, Hook: EdgeXDP, ProgramID: a.ProgramID, Chain: a.Chain})
	}
	return all, err
}

// attachedInDispatchers finds the edge's programs in dispatchers.
func attachedInDispatchers(bpffs string) (all []AttachedProgram, err error) {
	attached, err := dispatcherAttachments(bpffs)
	for _, a := range attached {
		all = append(all, AttachedProgram{ebpf.ProgramID(a.ProgramID), fmt.Sprintf("%s of device %d", a.Hook, a.Device)})
	}
	return all, err
}

// replaceInDispatchers replaces the programs of an earlier agent.
func replaceInDispatchers(datapath *Datapath) error {
	d := NewEdgeKernel(datapath, false)
	if err := inDispatchers(d.BPFFS()).Recover(); err != nil {
		return err
	}
	attached, err := dispatcherAttachments(d.BPFFS())
	if err != nil {
		return err
	}
	for _, a := range attached {
		xdp := xdpdispatch.Attached(a.Device)
		if xdp == nil {
			continue // removed meanwhile
		}
		if _, err := d.joinDispatcher(a.Device, xdp.AttachMode); err != nil {
			return fmt.Errorf("replace %s of device %d: %w", a.Hook, a.Device, err)
		}
	}
	return nil
}

// leaveDispatchers detaches what an earlier agent with an edge left.
func leaveDispatchers(bpffs string) error {
	if err := inDispatchers(bpffs).Recover(); err != nil {
		return err
	}
	return leave(bpffs, func(EdgeAttachment) bool { return true })
}

// leave detaches the edge from dispatchers.
func leave(bpffs string, chosen func(EdgeAttachment) bool) error {
	attached, err := dispatcherAttachments(bpffs)
	for _, a := range attached {
		if !chosen(a) {
			continue
		}
		if err := inDispatchers(bpffs).Leave(a.Device); err != nil {
			return fmt.Errorf("detach %s from device %d: %w", a.Hook, a.Device, err)
		}
	}
	return err
}
