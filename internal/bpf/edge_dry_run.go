// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"os"
	"slices"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/node/netdev"
)

// Explanation is the result of a dry run.
type Explanation = EdgeTCExplanation

// KeyOf returns the key of the frontend that was found; zero: none.
func KeyOf(e *Explanation) FrontendKey {
	return FrontendKey{Address: Address(e.Frontend.Address), Port: e.Frontend.Port, Protocol: e.Frontend.Protocol}
}

// A DryRun runs a program of the edge on synthetic packets.
type DryRun struct {
	// Other reports that the attached program is of another version.
	Other bool

	hook EdgeHook
	DryProgram
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
	d := &DryRun{hook: hook, DryProgram: DryProgram{Program: hook.declared().Program, Object: LoadEdgeTC, Components: []*Component{Socket(), edgeAt()}}}
	if hook == EdgeXDP {
		d.Object = LoadEdgeXDP
	}
	if attached[i].Chain != nil {
		d.Program, d.Object = XDPSlotProgBeelineEdge, LoadXDPSlot
	}
	id := ebpf.ProgramID(attached[i].ProgramID)
	if err = d.Load(bpffs, id); err == nil && !netdev.IsL3(attached[i].Device) {
		d.Other, err = d.Differs(id)
	}
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("load the program of %s for a dry run: %w", hook, err)
	}
	return d, nil
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
	if err := CopyConstants(spec, ebpf.ProgramID(attached[i].ProgramID)); err != nil {
		return nil, err
	}
	timeouts = new(ConntrackTimeouts)
	return timeouts, spec.Variables[EdgeTCVarCtTimeouts].Get(timeouts)
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
	if _, err := d.Loaded.Programs[d.Program].Run(&options); err != nil {
		return nil, fmt.Errorf("run the program of %s on a packet of device %d: %w", d.hook, device, err)
	}
	var perCPU []Explanation
	if err := d.Loaded.Maps[EdgeTCMapExplanations].Lookup(uint32(0), &perCPU); err != nil {
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
		m := d.Loaded.Maps[name]
		if err := m.Put(uint32(0), Zeros(m)); err != nil {
			return fmt.Errorf("clear %s: %w", name, err)
		}
	}
	return nil
}
