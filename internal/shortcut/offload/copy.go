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

// OffloadCopy is a second flow cache with small tables of its own, for a self-test. It is neither pinned nor repaired.
type OffloadCopy struct {
	Tables *OffloadTables

	collection *ebpf.Collection
	links      []link.Link
}

// offloadCopySets is the number of sets of an OffloadCopy.
const offloadCopySets = 16

// NewOffloadCopy loads the programs again.
func NewOffloadCopy() (*OffloadCopy, error) {
	spec, err := bpf.LoadOffload()
	if err != nil {
		return nil, err
	}
	resolution, err := jiffy()
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]any{
		bpf.OffloadVarOffloadSets: uint32(offloadCopySets), bpf.OffloadVarJiffyNs: resolution, bpf.OffloadVarPseudoHeaderV6: bpf.PseudoHeaderV6(),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, err
		}
	}
	spec.Maps[bpf.OffloadMapOffloadFlows].MaxEntries = offloadCopySets
	spec.Maps[bpf.OffloadMapOffloadTags].MaxEntries = offloadCopySets
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
	tables := &OffloadTables{
		Flows: c.Maps[bpf.OffloadMapOffloadFlows], Tags: c.Maps[bpf.OffloadMapOffloadTags], Controls: c.Maps[bpf.OffloadMapOffloadControls],
		Candidates: c.Maps[bpf.OffloadMapOffloadCandidates], Secret: secret,
	}
	return &OffloadCopy{Tables: tables, collection: c}, err
}

// offloadCopyName is the name of filters at tc of kernels before Linux 6.6.
const offloadCopyName = "selftest"

// Attach attaches the programs to a device of the caller's network namespace.
func (g *OffloadCopy) Attach(device int) error {
	if err := g.collection.Maps[bpf.OffloadMapOffloadDevices].Put(uint32(device), uint32(0)); err != nil {
		return err
	}
	for _, h := range offloadHooks {
		program := g.collection.Programs[h.Program]
		l, err := link.AttachTCX(link.TCXOptions{Interface: device, Program: program, Attach: h.Attach})
		if errors.Is(err, ebpf.ErrNotSupported) {
			err = OffloadPrograms(nil).AttachFilter(offloadCopyName, device, h.Attach, program)
		} else if err == nil {
			g.links = append(g.links, l)
		}
		if err != nil {
			return fmt.Errorf("attach %s to device %d: %w", h.Name, device, err)
		}
	}
	return nil
}

// Close detaches the programs. Filters of earlier kernels end with their device.
func (g *OffloadCopy) Close() {
	for _, l := range g.links {
		l.Close()
	}
	g.collection.Close()
}
