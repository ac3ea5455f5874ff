// SPDX-License-Identifier: Apache-2.0

package xdpdispatch

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
)

// Has reports whether a device has a dispatcher.
func Has(device int) bool {
	xdp := Attached(device)
	return xdp != nil && Other(xdp).Name == dispatcherName
}

// Attached returns the XDP program of a device, nil if there is none.
func Attached(device int) *netlink.LinkXdp {
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

// Other returns an error that names the program of a device.
func Other(xdp *netlink.LinkXdp) *OtherXDPError {
	e := &OtherXDPError{ProgramID: xdp.ProgId, Name: "unknown"}
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(xdp.ProgId))
	if err != nil {
		return e
	}
	defer p.Close()
	if info, err := p.Info(); err == nil && info.Name != "" {
		e.Name = info.Name
	}
	return e
}
