// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
)

// link connects a host to a device of the router, with addresses in a network, and default routes by the first link.
// The indices differ: the kernel takes a device whose index equals its lower device's for a physical one and delays a
// change of its carrier.
func (w *world) link(part, device string, network int) {
	w.t.Helper()
	far := w.wire(part, device, 100+network)
	w.ip("router", append(each(func(f family) string {
		return fmt.Sprintf("addr add %s dev %s nodad", netip.PrefixFrom(f.address(network, 1), f.prefix(network).Bits()), device)
	}), "link set "+device+" up")...)
	w.ip(part, append(each(func(f family) string {
		return fmt.Sprintf("addr add %s dev %s nodad", netip.PrefixFrom(f.address(network, 2), f.prefix(network).Bits()), far)
	}), "link set "+far+" up")...)
	if far == "eth0" {
		w.ip(part, each(func(f family) string {
			return fmt.Sprintf("route add default via %s dev %s", f.address(network, 1), far)
		})...)
	}
}

// wire makes a veth pair between the router and a host, whose end is eth0 or the next free name. It is down.
func (w *world) wire(part, device string, index int) (far string) {
	w.t.Helper()
	far = "eth0"
	if err := w.host(part).Do(func() error { _, err := netlink.LinkByName(far); return err }); err == nil {
		far = "eth1"
	}
	w.ip("router", fmt.Sprintf("link add %s index %d type veth peer name %s index %d netns %s", device, index, far, index+100, filepath.Base(w.host(part).NetNS)))
	return far
}

// addServer gives the server its own addresses.
func (w *world) addServer() {
	w.t.Helper()
	for n := 2; n <= 3; n++ {
		w.ip("server", each(func(f family) string {
			return fmt.Sprintf("addr add %s dev lo nodad", f.address(networkTargets, n))
		})...)
	}
	w.routeTargets(networkServer)
}

// routeTargets has the router reach the server's addresses by a link.
func (w *world) routeTargets(network int, options ...string) {
	w.t.Helper()
	w.ip("router", each(func(f family) string {
		return fmt.Sprintf("route replace %s via %s %s", f.prefix(networkTargets), f.address(network, 2), strings.Join(options, " "))
	})...)
}

// setMAC gives a device of a host another MAC address.
func (w *world) setMAC(part, device string, mac net.HardwareAddr) {
	w.t.Helper()
	w.ip(part, fmt.Sprintf("link set %s address %s", device, mac))
}
