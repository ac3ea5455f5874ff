// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// AttachEdgeXDP attaches the edge to a device's XDP hook, or replaces the program of an earlier agent
// there. If the device has a dispatcher, or should have one, it attaches the edge in the dispatcher, and
// returns the dispatcher's programs in the order in which they run. Errors: *OtherXDPError;
// ebpf.ErrNotSupported if the driver has no native XDP; *ExclusiveXDPError if it is attached, but by itself
// instead of in a dispatcher.
func (d *Datapath) AttachEdgeXDP(device int, mode XDPMode) (chain []ChainProgram, err error) {
	flags, attached := link.XDPDriverMode, uint32(nl.XDP_ATTACHED_DRV)
	if mode == XDPGeneric {
		flags, attached = link.XDPGenericMode, nl.XDP_ATTACHED_SKB
	}
	if xdp := xdpOf(device); xdp != nil && xdp.AttachMode != attached {
		if err := d.DetachEdge(device, EdgeXDP); err != nil {
			return nil, err
		}
	}
	alone := func() error {
		return d.attachEdge(device, EdgeXDP, func(program *ebpf.Program) (link.Link, error) {
			return link.AttachXDP(link.XDPOptions{Program: program, Interface: device, Flags: flags})
		})
	}
	shared := hasDispatcher(device)
	switch {
	case shared:
		chain, err = d.joinDispatcher(device, attached)
	case d.options.Edge.Dispatcher:
		chain, err = d.makeDispatcher(device, attached, alone)
	default:
		err = alone()
	}
	if err == nil || errors.As(err, new(*OtherXDPError)) || errors.As(err, new(*ExclusiveXDPError)) {
		return chain, err
	}
	if xdp := xdpOf(device); xdp != nil && (errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST)) {
		return nil, otherXDP(xdp)
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) && !shared {
		return nil, fmt.Errorf("its driver refuses XDP (%w): %w", err, ebpf.ErrNotSupported)
	}
	return nil, fmt.Errorf("attach to XDP: %w", err)
}

func hasDispatcher(device int) bool {
	xdp := xdpOf(device)
	return xdp != nil && otherXDP(xdp).Name == dispatcherName
}

// xdpOf returns the XDP program of a device, nil if there is none.
func xdpOf(device int) *netlink.LinkXdp {
	l, err := netlink.LinkByIndex(device)
	if err != nil || l.Attrs().Xdp == nil || !l.Attrs().Xdp.Attached {
		return nil
	}
	return l.Attrs().Xdp
}

// An OtherXDPError means that another XDP program is attached to the device, and why the edge cannot share
// it.
type OtherXDPError struct {
	ProgramID uint32
	Name      string
	Reason    string // empty: it is not a dispatcher
}

func (e *OtherXDPError) Error() string {
	reason := e.Reason
	if reason == "" {
		reason = "it is not in a dispatcher, which several can share: load it with xdp-loader"
	}
	return fmt.Sprintf("another XDP program is attached to the device (%s, program %d): %s; or use tc (--edge-mode=tc)", e.Name, e.ProgramID, reason)
}

// otherXDP returns an error that names the program of a device.
func otherXDP(xdp *netlink.LinkXdp) *OtherXDPError {
	e := &OtherXDPError{ProgramID: xdp.ProgId, Name: "unknown"}
	if info, err := programInfo(ebpf.ProgramID(xdp.ProgId)); err == nil && info.Name != "" {
		e.Name = info.Name
	}
	return e
}
