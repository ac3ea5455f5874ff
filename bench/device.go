// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/lab"
)

// deviceOf returns the attributes of a host's device.
func deviceOf(h *lab.Host, name string) (*netlink.LinkAttrs, error) {
	nl, link, err := h.OpenDevice(name)
	if err != nil {
		return nil, err
	}
	defer nl.Close()
	return link.Attrs(), nil
}

// programsAt opens the programs that an agent has attached to a device of this namespace.
func programsAt(bpffs string, device int, each func(bpf.EdgeHook, *ebpf.Program) error) error {
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

// gateways are the nodes' on the fabric, by family.
var gateways = map[string]netip.Addr{"IPv4": netip.MustParseAddr("192.168.100.254"), "IPv6": netip.MustParseAddr("fd00:100::fe")}

// setNeighbour adds a permanent neighbour entry to a host.
func setNeighbour(h *lab.Host, device int, address netip.Addr, mac net.HardwareAddr) error {
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

// routeTo adds a route to a host.
func routeTo(h *lab.Host, device string, to netip.Prefix, via netip.Addr) error {
	link, err := deviceOf(h, device)
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
	balancedRange = netip.MustParsePrefix("192.0.2.0/24") // all of it is routed to node-a
	addressSNAT   = netip.MustParseAddr("192.0.2.1")
	addressDSR    = netip.MustParseAddr("192.0.2.2")
)
