// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"hash/fnv"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/xdpdispatch"
)

// EdgePriority is the edge's priority among the XDP programs of a device: whoever
// has none of his own (50) runs before, so that filters see all packets.
const EdgePriority = 100

// slotName is the name of the edge's program in dispatchers. It tells the agents of
// several bpffs directories apart, and has 15 characters, as many as the kernel keeps.
func slotName(bpffs string) string {
	h := fnv.New32a()
	h.Write([]byte(bpffs))
	return fmt.Sprintf("beeline_%07x", h.Sum32()&0xfffffff)
}

// joinDispatcher has the present program of the edge run in the device's dispatcher,
// in place of that of an earlier agent; it makes one if the device has no XDP program.
// `mode` is nl.XDP_ATTACHED_DRV or the like.
func (d *Datapath) joinDispatcher(device int, mode uint32) ([]xdpdispatch.ChainProgram, error) {
	if err := d.canShare(); err != nil {
		return nil, err
	}
	return d.joinEdge(device, mode)
}

// canShare is an error if the kernel has no dispatchers.
func (d *Datapath) canShare() error {
	if err := d.replacement(); err != nil {
		return fmt.Errorf("XDP programs cannot share a device under this kernel, for it has, or allows, no programs that replace functions (%v): leave --edge-xdp-dispatcher out, if that is set", err)
	}
	return nil
}

// An ExclusiveXDPError says why the edge is at a device's XDP hook by itself, and not in a
// dispatcher as was asked. It serves there.
type ExclusiveXDPError struct{ reason error }

func (e *ExclusiveXDPError) Error() string {
	return fmt.Sprintf("Beeline is alone there, and not in a dispatcher: %v", e.reason)
}

func (e *ExclusiveXDPError) Unwrap() error { return e.reason }

// makeDispatcher has the edge run in a dispatcher at a device that has none. Its own link
// is in the way of that, and stays where no dispatcher can be, or comes back.
func (d *Datapath) makeDispatcher(device int, mode uint32, alone func() error) (chain []xdpdispatch.ChainProgram, err error) {
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

// loadSlot loads the edge's program such that it can replace a function: this one, and
// those like it in other dispatchers.
func (d *Datapath) loadSlot(target *ebpf.Program, function string) (*ebpf.Program, error) {
	spec, err := LoadXDPSlot()
	if err != nil {
		return nil, err
	}
	p := spec.Programs[XDPSlotProgBeelineEdge]
	main := *btf.FuncMetadata(&p.Instructions[0]) // which is what tools call the program
	main.Name = slotName(d.options.BPFFS)
	p.Instructions[0] = btf.WithFuncMetadata(p.Instructions[0], &main)
	p.Name, p.Type, p.AttachType, p.AttachTarget, p.AttachTo = slotName(d.options.BPFFS), ebpf.Extension, ebpf.AttachNone, target, function
	if err := d.loadPrograms([]*ebpf.CollectionSpec{spec}); err != nil {
		return nil, err
	}
	return d.program(XDPSlotProgBeelineEdge), nil
}

// inDispatchers is the edge's program in dispatchers, of which an agent has a bpffs directory.
func inDispatchers(bpffs string) *xdpdispatch.Client {
	return &xdpdispatch.Client{
		Name: slotName(bpffs), Priority: EdgePriority, Flags: unix.BPF_F_XDP_HAS_FRAGS,
		Pins: filepath.Join(bpffs, "programs"),
	}
}

// joinEdge is joinDispatcher where the kernel can do it.
func (d *Datapath) joinEdge(device int, mode uint32) ([]xdpdispatch.ChainProgram, error) {
	c := inDispatchers(d.options.BPFFS)
	c.Program = func() *ebpf.Program { return d.program(XDPSlotProgBeelineEdge) }
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
