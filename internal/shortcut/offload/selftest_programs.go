// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/settable"
)

// programCopy is a second flow cache with small tables of its own, for a self-test. It is neither pinned nor repaired.
type programCopy struct {
	Tables *Tables

	collection *ebpf.Collection
	links      []link.Link
}

// copySets is the number of sets of a programCopy.
const copySets = 16

// newProgramCopy loads the programs again.
func newProgramCopy() (*programCopy, error) {
	spec, err := bpf.LoadOffload()
	if err != nil {
		return nil, err
	}
	resolution, err := jiffy()
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]any{
		bpf.OffloadVarOffloadSets: uint32(copySets), bpf.OffloadVarJiffyNs: resolution, bpf.OffloadVarPseudoHeaderV6: bpf.PseudoHeaderV6(),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, err
		}
	}
	spec.Maps[bpf.OffloadMapOffloadFlows].MaxEntries = copySets
	spec.Maps[bpf.OffloadMapOffloadTags].MaxEntries = copySets
	spec.Maps[bpf.OffloadMapOffloadDevices].MaxEntries = 16
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, fmt.Errorf("load the programs: %w", err)
	}
	if err := settable.InitSecret(c.Maps[bpf.OffloadMapTableSecret]); err != nil {
		c.Close()
		return nil, err
	}
	secret, err := settable.ReadSecret(c.Maps[bpf.OffloadMapTableSecret])
	if err != nil {
		c.Close()
		return nil, err
	}
	tables := &Tables{
		Flows: c.Maps[bpf.OffloadMapOffloadFlows], Tags: c.Maps[bpf.OffloadMapOffloadTags], Controls: c.Maps[bpf.OffloadMapOffloadControls],
		Candidates: c.Maps[bpf.OffloadMapOffloadCandidates], Secret: secret,
	}
	return &programCopy{Tables: tables, collection: c}, nil
}

// copyName is the name of filters at tc of kernels before Linux 6.6.
const copyName = "selftest"

// Attach attaches the programs to a device of the caller's network namespace.
func (p *programCopy) Attach(device int) error {
	if err := p.collection.Maps[bpf.OffloadMapOffloadDevices].Put(uint32(device), uint32(0)); err != nil {
		return err
	}
	for _, h := range hooks {
		program := p.collection.Programs[h.Program]
		l, err := link.AttachTCX(link.TCXOptions{Interface: device, Program: program, Attach: h.Attach})
		if errors.Is(err, ebpf.ErrNotSupported) {
			err = Programs(nil).AttachFilter(copyName, device, h.Attach, program)
		} else if err == nil {
			p.links = append(p.links, l)
		}
		if err != nil {
			return fmt.Errorf("attach %s to device %d: %w", h.Name, device, err)
		}
	}
	return nil
}

// Close detaches the programs. Filters of earlier kernels end with their device.
func (p *programCopy) Close() {
	for _, l := range p.links {
		l.Close()
	}
	p.collection.Close()
}
