// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
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

// attachFlags are the flags of netlink, by the kernel's mode of attachment.
var attachFlags = map[uint32]uint32{nl.XDP_ATTACHED_DRV: nl.XDP_FLAGS_DRV_MODE, nl.XDP_ATTACHED_SKB: nl.XDP_FLAGS_SKB_MODE}

// joinDispatcher makes the device's dispatcher run the edge's current program in place of an earlier
// agent's; it makes a dispatcher if the device has no XDP program. `mode` is nl.XDP_ATTACHED_DRV or the
// like.
func (d *Datapath) joinDispatcher(device int, mode uint32) ([]ChainProgram, error) {
	if err := d.canShare(); err != nil {
		return nil, err
	}
	return d.joinEdge(device, mode)
}

// canShare returns an error if the kernel does not support dispatchers.
func (d *Datapath) canShare() error {
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
func (d *Datapath) makeDispatcher(device int, mode uint32, alone func() error) (chain []ChainProgram, err error) {
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

// joinEdge is joinDispatcher for a kernel that supports it.
func (d *Datapath) joinEdge(device int, mode uint32) ([]ChainProgram, error) {
	change := dispatcherChange{bpffs: d.options.BPFFS, device: device, flags: attachFlags[mode], load: d.loadSlot}
	change.members = func(old *dispatcher) ([]member, bool, error) {
		own := member{
			ChainProgram: ChainProgram{Name: slotName(d.options.BPFFS), Priority: EdgePriority},
			program:      d.program(XDPSlotProgBeelineEdge), flags: unix.BPF_F_XDP_HAS_FRAGS,
			actions: 1<<dispatcherNotReplaced | 1<<2, // XDP_PASS
		}
		if own.program != nil {
			if err := own.identify(); err != nil {
				return nil, false, err
			}
		}
		if old == nil {
			return []member{own}, true, nil
		}
		if old.mode != mode {
			return nil, false, &OtherXDPError{ProgramID: old.id, Name: dispatcherName, Reason: "it does not run in the requested mode (native or generic): load its programs again in the other mode"}
		}
		if slices.ContainsFunc(old.members, func(m member) bool { return own.ID != 0 && m.ID == own.ID }) {
			return nil, false, nil
		}
		others := slices.DeleteFunc(slices.Clone(old.members), func(m member) bool { return m.Name == own.Name })
		if len(others) == dispatcherPlaces {
			return nil, false, &OtherXDPError{ProgramID: old.id, Name: dispatcherName, Reason: fmt.Sprintf("it already runs %d programs, its maximum: unload one", len(others))}
		}
		return sorted(append(others, own)), true, nil
	}
	if err := change.run(); err != nil {
		return nil, err
	}
	now, err := readDispatcher(device)
	if err != nil || now == nil {
		return nil, errors.Join(err, errors.New("the device has already lost its dispatcher: something else changes its XDP programs"))
	}
	defer now.close()
	return now.chain(d.options.BPFFS), nil
}

// loadSlot loads the edge's program so that it can replace a function: this one, and equivalent ones in
// other dispatchers.
func (d *Datapath) loadSlot(target *ebpf.Program, function string) (*ebpf.Program, error) {
	spec, err := LoadXDPSlot()
	if err != nil {
		return nil, err
	}
	p := spec.Programs[XDPSlotProgBeelineEdge]
	main := *btf.FuncMetadata(&p.Instructions[0]) // tools show its name as the program's
	main.Name = slotName(d.options.BPFFS)
	p.Instructions[0] = btf.WithFuncMetadata(p.Instructions[0], &main)
	p.Name, p.Type, p.AttachType, p.AttachTarget, p.AttachTo = slotName(d.options.BPFFS), ebpf.Extension, ebpf.AttachNone, target, function
	if err := d.loadPrograms([]*ebpf.CollectionSpec{spec}); err != nil {
		return nil, err
	}
	return d.program(XDPSlotProgBeelineEdge), nil
}

// leaveDispatcher removes the edge's program from the device's dispatcher, and the dispatcher if no other
// program is in it.
func leaveDispatcher(bpffs string, device int) error {
	xdp := xdpOf(device)
	if xdp == nil {
		return nil
	}
	change := dispatcherChange{bpffs: bpffs, device: device, flags: attachFlags[xdp.AttachMode]}
	change.members = func(old *dispatcher) ([]member, bool, error) {
		if old == nil {
			return nil, false, nil
		}
		others := slices.DeleteFunc(slices.Clone(old.members), func(m member) bool { return m.Name == slotName(bpffs) })
		return others, len(others) != len(old.members), nil
	}
	return change.run()
}

// dispatcherAttachments finds a bpffs directory's programs in the dispatchers of this
// network namespace.
func dispatcherAttachments(bpffs string) (all []EdgeAttachment, _ error) {
	if _, err := os.Stat(dispatchersPath()); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	devices, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	for _, device := range devices {
		if xdp := device.Attrs().Xdp; xdp == nil || !xdp.Attached {
			continue
		}
		d, err := readDispatcher(device.Attrs().Index)
		if errors.As(err, new(*OtherXDPError)) || d == nil && err == nil {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("the XDP programs of %s: %w", device.Attrs().Name, err)
		}
		chain := d.chain(bpffs)
		d.close()
		for _, p := range chain {
			if p.Own {
				all = append(all, EdgeAttachment{Device: d.device, Hook: EdgeXDP, ProgramID: p.ID, Chain: chain})
			}
		}
	}
	return all, nil
}
