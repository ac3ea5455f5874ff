// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf/xdpdispatch"
	"beeline.io/beeline/internal/node/netdev"
)

// EdgeHook is the attach point of a program of the edge at a device.
type EdgeHook string

// The hooks, in the order of attachment: programs for replies precede those that forward to backends.
const (
	EdgeEgress  EdgeHook = "egress"
	EdgeIngress EdgeHook = "ingress"
	EdgeXDP     EdgeHook = "xdp"
)

var edgeHooks = []DeviceHook{
	{Name: string(EdgeEgress), Program: EdgeTCProgBeelineEdgeEgress, Attach: ebpf.AttachTCXEgress, ProgramAt: atL3(EdgeL3ProgBeelineL3Egress)},
	// The pod shortcut handles what the edge has rewritten. After it the edge is correct, too: the kernel's
	// conntrack then has these flows.
	{Name: string(EdgeIngress), Program: EdgeTCProgBeelineEdgeIngress, Attach: ebpf.AttachTCXIngress, Before: "pod", ProgramAt: atL3(EdgeL3ProgBeelineL3Ingress)},
	{Name: string(EdgeXDP), Program: EdgeXDPProgBeelineEdgeXdp, Attach: ebpf.AttachXDP},
}

// atL3 returns the program for devices without MAC addresses.
func atL3(program string) func(int) string {
	return func(device int) string {
		if netdev.IsL3(device) {
			return program
		}
		return ""
	}
}

// declared returns the declaration of a hook.
func (h EdgeHook) declared() *DeviceHook { return edgeAt().Hook(string(h)) }

// XDPMode is where an XDP program runs.
type XDPMode string

const (
	// XDPNative: in the device's driver.
	XDPNative XDPMode = "native"
	// XDPGeneric: in the kernel, after allocation of a packet buffer; slower than tc.
	XDPGeneric XDPMode = "generic"
)

// EdgeAttachment is an attached program of the edge.
type EdgeAttachment struct {
	Device    int      `json:"device"` // index
	Hook      EdgeHook `json:"hook"`
	ProgramID uint32   `json:"programID"`
	LinkID    uint32   `json:"linkID,omitempty"` // 0: a filter
	// Detached: the device is gone, or something detached the program.
	Detached bool `json:"detached,omitempty"`
	// Chain are the programs that share the device, in the order in which they run,
	// if it has a dispatcher.
	Chain []xdpdispatch.ChainProgram `json:"chain,omitempty"`
}

// edgeName is the prefix of the names of the edge's pinned links.
const edgeName = "edge"

// edgeAt is the edge as far as it does not depend on options: where it is attached.
func edgeAt() *Component { return Edge(func() *EdgeOptions { return nil }) }

// EdgeAttachments lists what is attached to devices of this network namespace, by the pinned links of a
// bpffs directory, as filters or in dispatchers, in the order of devices and attachment.
func EdgeAttachments(bpffs string) ([]EdgeAttachment, error) {
	links, err := edgeAt().DeviceAttachments(bpffs)
	if err != nil {
		return nil, err
	}
	all, err := dispatcherAttachments(bpffs)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		all = append(all, EdgeAttachment{
			Device: l.Device(), Hook: EdgeHook(l.Hook), ProgramID: uint32(l.Program), LinkID: uint32(l.ID), Detached: l.Detached,
		})
	}
	order := func(h EdgeHook) int {
		return slices.IndexFunc(edgeHooks, func(d DeviceHook) bool { return d.Name == string(h) })
	}
	slices.SortStableFunc(all, func(a, b EdgeAttachment) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(order(a.Hook), order(b.Hook)))
	})
	return all, nil
}

// AttachEdgeTC attaches the edge to a device's tc hooks, or replaces the programs
// of an earlier agent there.
func (d EdgeKernel) AttachEdgeTC(device int) error {
	for _, hook := range []EdgeHook{EdgeEgress, EdgeIngress} {
		if id, err := d.ForeignAt(edgeAt(), hook.declared(), device); err != nil {
			return err
		} else if id != 0 {
			return fmt.Errorf("another Beeline serves the device already (program %d): stop it and run `beeline cleanup` with its --pins, "+
				"or leave the device out with --devices, or disable the edge with --edge-mode=off", id)
		}
		if err := d.AttachHook(edgeAt(), hook.declared(), DeviceTarget{Index: device}); err != nil {
			return fmt.Errorf("attach to tc %s: %w", hook, err)
		}
	}
	return nil
}

// DetachEdge detaches hooks of the edge from a device; all, if none is named. The device may be gone.
func (d EdgeKernel) DetachEdge(device int, hooks ...EdgeHook) error {
	other := func(at int, hook EdgeHook) bool {
		return at != device || len(hooks) > 0 && !slices.Contains(hooks, hook)
	}
	if err := leave(d.BPFFS(), func(a EdgeAttachment) bool { return !other(a.Device, a.Hook) }); err != nil {
		return err
	}
	links, err := edgeAt().DeviceAttachments(d.BPFFS())
	if err != nil {
		return err
	}
	return RemoveLinks(slices.DeleteFunc(links, func(l Link) bool { return other(l.Device(), EdgeHook(l.Hook)) }))
}

// EdgeAttachments lists what is attached to devices.
func (d EdgeKernel) EdgeAttachments() ([]EdgeAttachment, error) {
	return EdgeAttachments(d.BPFFS())
}
