// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

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

var edgeHooks = []EdgeHook{EdgeEgress, EdgeIngress, EdgeXDP}

var edgeHookNames = []string{string(EdgeEgress), string(EdgeIngress), string(EdgeXDP)}

// edgePrograms by hook, of devices with MAC addresses.
var edgePrograms = map[EdgeHook]string{
	EdgeEgress:  EdgeTCProgBeelineEdgeEgress,
	EdgeIngress: EdgeTCProgBeelineEdgeIngress,
	EdgeXDP:     EdgeXDPProgBeelineEdgeXdp,
}

// l3Programs by hook, of devices without MAC addresses.
var l3Programs = map[EdgeHook]string{EdgeEgress: EdgeL3ProgBeelineL3Egress, EdgeIngress: EdgeL3ProgBeelineL3Ingress}

// edgeProgramName returns the name of the program for a hook of a device.
func edgeProgramName(device int, hook EdgeHook) string {
	if name := l3Programs[hook]; name != "" && netdev.IsL3(device) {
		return name
	}
	return edgePrograms[hook]
}

var tcxTypes = map[EdgeHook]ebpf.AttachType{EdgeEgress: ebpf.AttachTCXEgress, EdgeIngress: ebpf.AttachTCXIngress}

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
	// filter is set if there is no link.
	filter *netlink.BpfFilter
}

// edgeName is the prefix of the names of the edge's pinned links.
const edgeName = "edge"

func edgeLinkPath(bpffs string, device int, hook EdgeHook) string {
	return deviceLinkPath(bpffs, edgeName, device, string(hook))
}

// EdgeAttachments lists what is attached to devices of this network namespace, by the pinned links of a
// bpffs directory, as filters or in dispatchers, in the order of devices and attachment.
func EdgeAttachments(bpffs string) ([]EdgeAttachment, error) {
	links, err := deviceLinks(bpffs, edgeName, edgeHookNames)
	if err != nil {
		return nil, err
	}
	var all []EdgeAttachment
	for _, l := range links {
		all = append(all, EdgeAttachment{
			Device: l.device, Hook: EdgeHook(l.hook), ProgramID: uint32(l.program), LinkID: uint32(l.link), Detached: l.detached,
		})
	}
	filters, err := edgeFilters(bpffs)
	if err != nil {
		return nil, err
	}
	all = append(all, filters...)
	shared, err := dispatcherAttachments(bpffs)
	if err != nil {
		return nil, err
	}
	all = append(all, shared...)
	slices.SortFunc(all, func(a, b EdgeAttachment) int {
		if a.Device != b.Device {
			return a.Device - b.Device
		}
		return slices.Index(edgeHooks, a.Hook) - slices.Index(edgeHooks, b.Hook)
	})
	return all, nil
}

func (a *EdgeAttachment) takeDown(bpffs string) error {
	if a.filter != nil {
		return removeFilter(a.filter)
	}
	if a.Chain != nil {
		return inDispatchers(bpffs).Leave(a.Device)
	}
	return removeDeviceLink(bpffs, edgeName, a.Device, string(a.Hook))
}

// AttachEdgeTC attaches the edge to a device's tc hooks, or replaces the programs
// of an earlier agent there.
func (d *Datapath) AttachEdgeTC(device int) error {
	for _, hook := range []EdgeHook{EdgeEgress, EdgeIngress} {
		if err := d.refuseForeignEdge(device, hook); err != nil {
			return err
		}
		program, err := d.edgeProgram(device, hook)
		if err != nil {
			return err
		}
		err = d.attachEdge(device, hook, func(program *ebpf.Program) (link.Link, error) {
			return link.AttachTCX(link.TCXOptions{Interface: device, Program: program, Attach: tcxTypes[hook], Anchor: d.beforePods(device, hook)})
		})
		if errors.Is(err, ebpf.ErrNotSupported) {
			err = attachFilter(d.options.BPFFS, edgeName, device, tcxTypes[hook], program)
		}
		if err != nil {
			return fmt.Errorf("attach to tc %s: %w", hook, err)
		}
	}
	return nil
}

// beforePods returns the place of the edge's ingress program before that of the pod shortcut, which handles what the
// edge has rewritten; nil, the end of the list, if the shortcut is not at the device.
func (d *Datapath) beforePods(device int, hook EdgeHook) link.Anchor {
	if hook != EdgeIngress {
		return nil
	}
	links, err := deviceLinks(d.options.BPFFS, PodComponent, []string{PodHook})
	if err != nil {
		return nil // attaching to the end is correct, too: the kernel's conntrack then has these flows
	}
	for _, l := range links {
		if l.device == device && !l.detached {
			return link.BeforeLinkByID(l.link)
		}
	}
	return nil
}

// attachEdge replaces the program in the pinned link, or makes one.
func (d *Datapath) attachEdge(device int, hook EdgeHook, attach func(*ebpf.Program) (link.Link, error)) error {
	program, err := d.edgeProgram(device, hook)
	if err != nil {
		return err
	}
	return d.attachPinned(edgeLinkPath(d.options.BPFFS, device, hook), program, atDevice(device), func() (link.Link, error) { return attach(program) })
}

// DetachEdge detaches hooks of the edge from a device; all, if none is named. The device may be gone.
func (d *Datapath) DetachEdge(device int, hooks ...EdgeHook) error {
	attached, err := EdgeAttachments(d.options.BPFFS)
	if err != nil {
		return err
	}
	for _, a := range slices.Backward(attached) {
		if a.Device != device || len(hooks) > 0 && !slices.Contains(hooks, a.Hook) {
			continue
		}
		if err := a.takeDown(d.options.BPFFS); err != nil {
			return fmt.Errorf("detach from %s: %w", a.Hook, err)
		}
	}
	return nil
}

// EdgeAttachments lists what is attached to devices.
func (d *Datapath) EdgeAttachments() ([]EdgeAttachment, error) {
	return EdgeAttachments(d.options.BPFFS)
}

// WaitForReaders is Tables.WaitForReaders.
func (d *Datapath) WaitForReaders() error { return d.Tables.WaitForReaders() }

// replaceEdge replaces the attached programs of an earlier agent.
func (d *Datapath) replaceEdge() error {
	if err := inDispatchers(d.options.BPFFS).Recover(); err != nil {
		return err
	}
	all, err := EdgeAttachments(d.options.BPFFS)
	if err != nil {
		return err
	}
	for _, a := range all {
		if err := d.replaceEdgeProgram(a); err != nil {
			return fmt.Errorf("replace %s of device %d: %w", a.Hook, a.Device, err)
		}
	}
	return nil
}

func (d *Datapath) replaceEdgeProgram(a EdgeAttachment) error {
	if a.filter != nil {
		program, err := d.edgeProgram(a.Device, a.Hook)
		if err != nil {
			return err
		}
		return attachFilter(d.options.BPFFS, edgeName, a.Device, tcxTypes[a.Hook], program)
	}
	if a.Detached {
		return a.takeDown(d.options.BPFFS)
	}
	if a.Chain != nil {
		if xdp := xdpdispatch.Attached(a.Device); xdp != nil {
			_, err := d.joinDispatcher(a.Device, xdp.AttachMode)
			return err
		}
		return nil // removed meanwhile
	}
	program, err := d.edgeProgram(a.Device, a.Hook)
	if err != nil {
		return err
	}
	l, err := link.LoadPinnedLink(edgeLinkPath(d.options.BPFFS, a.Device, a.Hook), nil)
	if err != nil {
		return err
	}
	defer l.Close()
	return l.Update(program)
}
