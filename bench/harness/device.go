// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/lab"
)

// DeviceOf returns the attributes of a host's device.
func DeviceOf(h *lab.Host, name string) (*netlink.LinkAttrs, error) {
	nl, link, err := h.OpenDevice(name)
	if err != nil {
		return nil, err
	}
	defer nl.Close()
	return link.Attrs(), nil
}

// ProgramsAt opens the programs that an agent has attached to a device of this namespace.
func ProgramsAt(bpffs string, device int, each func(bpf.EdgeHook, *ebpf.Program) error) error {
	attached, err := bpf.EdgeAttachments(bpffs)
	if err != nil {
		return err
	}
	for _, a := range attached {
		if a.Device != device {
			continue
		}
		program, err := ebpf.NewProgramFromID(ebpf.ProgramID(a.ProgramID))
		if err != nil {
			return err
		}
		if err := each(a.Hook, program); err != nil {
			return fmt.Errorf("%s: %w", a.Hook, err)
		}
	}
	return nil
}

// Gateways are the nodes' on the fabric, by family.
var Gateways = map[string]netip.Addr{"IPv4": netip.MustParseAddr("192.168.100.254"), "IPv6": netip.MustParseAddr("fd00:100::fe")}

// SetNeighbour adds a permanent neighbour entry to a host.
func SetNeighbour(h *lab.Host, device int, address netip.Addr, mac net.HardwareAddr) error {
	nl, err := h.Netlink()
	if err != nil {
		return err
	}
	defer nl.Close()
	err = nl.NeighSet(&netlink.Neigh{LinkIndex: device, State: netlink.NUD_PERMANENT, IP: address.AsSlice(), HardwareAddr: mac})
	if err != nil {
		return fmt.Errorf("%s: neighbour %s: %w", h.Name, address, err)
	}
	return nil
}

// RouteTo adds a route to a host.
func RouteTo(h *lab.Host, device string, to netip.Prefix, via netip.Addr) error {
	link, err := DeviceOf(h, device)
	if err != nil {
		return err
	}
	nl, err := h.Netlink()
	if err != nil {
		return err
	}
	defer nl.Close()
	err = nl.RouteAdd(&netlink.Route{LinkIndex: link.Index, Gw: via.AsSlice(),
		Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}})
	if err != nil {
		return fmt.Errorf("host %s: route to %s: %w", h.Name, to, err)
	}
	return nil
}

// External addresses of Services.
var (
	BalancedRange = netip.MustParsePrefix("192.0.2.0/24") // all of it is routed to node-a
	AddressSNAT   = netip.MustParseAddr("192.0.2.1")
	AddressDSR    = netip.MustParseAddr("192.0.2.2")
)
