// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf/xdpdispatch"
)

// XDPModeOf returns where the XDP program of a device runs; XDPNative if the device has none.
func XDPModeOf(device int) XDPMode {
	if xdp := xdpdispatch.Attached(device); xdp != nil && xdp.AttachMode == nl.XDP_ATTACHED_SKB {
		return XDPGeneric
	}
	return XDPNative
}

// AttachEdgeXDP attaches the edge to a device's XDP hook, or replaces the program of an earlier agent
// there. If the device has a dispatcher, or should have one, it attaches the edge in the dispatcher, and
// returns the dispatcher's programs in the order in which they run. Errors: *OtherXDPError;
// ebpf.ErrNotSupported if the driver has no native XDP; *ExclusiveXDPError if it is attached, but by itself
// instead of in a dispatcher.
func (d EdgeKernel) AttachEdgeXDP(device int, mode XDPMode) (chain []xdpdispatch.ChainProgram, err error) {
	flags, attached := link.XDPDriverMode, uint32(nl.XDP_ATTACHED_DRV)
	if mode == XDPGeneric {
		flags, attached = link.XDPGenericMode, nl.XDP_ATTACHED_SKB
	}
	if xdp := xdpdispatch.Attached(device); xdp != nil && xdp.AttachMode != attached {
		if err := d.DetachEdge(device, EdgeXDP); err != nil {
			return nil, err
		}
	}
	alone := func() error {
		return d.AttachHook(edgeAt(), EdgeXDP.declared(), DeviceTarget{Index: device, XDP: flags})
	}
	shared := xdpdispatch.Has(device)
	switch {
	case shared:
		chain, err = d.joinDispatcher(device, attached)
	case d.dispatcher:
		chain, err = d.makeDispatcher(device, attached, alone)
	default:
		err = alone()
	}
	if err == nil || errors.As(err, new(*xdpdispatch.OtherXDPError)) || errors.As(err, new(*ExclusiveXDPError)) {
		return chain, err
	}
	if xdp := xdpdispatch.Attached(device); xdp != nil && (errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST)) {
		return nil, xdpdispatch.Other(xdp)
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) && !shared {
		return nil, fmt.Errorf("its driver refuses XDP (%w): %w", err, ebpf.ErrNotSupported)
	}
	return nil, fmt.Errorf("attach to XDP: %w", err)
}
