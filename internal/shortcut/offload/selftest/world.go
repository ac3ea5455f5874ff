// SPDX-License-Identifier: Apache-2.0

package selftest

import (
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/node/netns"
)

// Addresses of a World; the networks are for documentation (RFC 5737, RFC 3849). The router translates packets to a
// VIP.
var (
	ClientAddresses = []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8:1::1/64")}
	ServerAddresses = []netip.Prefix{netip.MustParsePrefix("198.51.100.1/24"), netip.MustParsePrefix("2001:db8:2::1/64")}
	VIPs            = []netip.Addr{netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("2001:db8:3::1")}
	toClient        = []netip.Prefix{netip.MustParsePrefix("192.0.2.254/24"), netip.MustParsePrefix("2001:db8:1::fe/64")}
	toServer        = []netip.Prefix{netip.MustParsePrefix("198.51.100.254/24"), netip.MustParsePrefix("2001:db8:2::fe/64")}
)

// The router's devices. Those of client and server are both named HostDevice.
const (
	ClientDevice = "client"
	ServerDevice = "server"
	HostDevice   = "eth0"
)

// A World is a client and a server in different networks, and a router between them, each in a network namespace
// without a name. IPv6 is false if the kernel has none, or it is disabled.
type World struct {
	Client, Router, Server *netns.Namespace
	IPv6                   bool

	servers []interface{ Close() error }
}

// NewWorld creates the namespaces, devices, addresses and routes, the router's NAT rules and the servers.
func NewWorld() (*World, error) {
	w := &World{IPv6: haveIPv6()}
	for _, step := range []func() error{w.createNamespaces, w.connect, w.translate, w.serve} {
		if err := step(); err != nil {
			w.Close()
			return nil, err
		}
	}
	return w, nil
}

func haveIPv6() bool {
	_, err := os.Stat(netdev.SysctlRoot + "/ipv6/conf")
	return err == nil
}

// Close ends the servers and the namespaces.
func (w *World) Close() {
	for _, s := range w.servers {
		s.Close()
	}
	for _, n := range []*netns.Namespace{w.Client, w.Router, w.Server} {
		if n != nil {
			n.Close()
		}
	}
}

func (w *World) createNamespaces() (err error) {
	for _, n := range []**netns.Namespace{&w.Client, &w.Router, &w.Server} {
		if *n, err = netns.New(); err != nil {
			return err
		}
	}
	return nil
}

func (w *World) connect() error {
	err := w.Router.Do(func() error {
		if err := w.routerDevice(ClientDevice, w.Client, toClient); err != nil {
			return err
		}
		return w.routerDevice(ServerDevice, w.Server, toServer)
	})
	if err == nil {
		err = w.hostDevice(w.Client, ClientAddresses, toClient)
	}
	if err == nil {
		err = w.hostDevice(w.Server, ServerAddresses, toServer)
	}
	if err != nil {
		return err
	}
	return w.Router.Do(func() error {
		for _, device := range []string{ClientDevice, ServerDevice} {
			if err := AwaitUp(device); err != nil {
				return err
			}
		}
		return w.forward()
	})
}

// AwaitUp waits until a device of the calling thread's namespace sends packets: the kernel drops them for some
// milliseconds after the device is set up. Both ends of a veth begin at once.
func AwaitUp(device string) error {
	for end := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return fmt.Errorf("device %s: %w", device, err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("device %s is not up after a second: %s", device, link.Attrs().OperState)
		}
	}
}

// forward has the router forward packets.
func (w *World) forward() error {
	err := netdev.Sysctl("ipv4/ip_forward").Set(netdev.SysctlRoot, "1")
	if err == nil && w.IPv6 {
		err = netdev.Sysctl("ipv6/conf/all/forwarding").Set(netdev.SysctlRoot, "1")
	}
	return err
}

// routerDevice creates a device of the router, whose other end is a host's.
func (w *World) routerDevice(name string, host *netns.Namespace, addresses []netip.Prefix) error {
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: HostDevice, PeerNamespace: netlink.NsFd(host.FD())}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("create a veth device: %w", err)
	}
	return w.Address(name, addresses)
}

// hostDevice sets up the device of a host, and its default routes by the router.
func (w *World) hostDevice(host *netns.Namespace, addresses, routers []netip.Prefix) error {
	return host.Do(func() error {
		if err := w.Address(HostDevice, addresses); err != nil {
			return err
		}
		for _, via := range w.families(routers) {
			if err := netlink.RouteAdd(&netlink.Route{Dst: everything(via.Addr()), Gw: via.Addr().AsSlice()}); err != nil {
				return fmt.Errorf("add a default route by %s: %w", via.Addr(), err)
			}
		}
		return nil
	})
}

func everything(family netip.Addr) *net.IPNet {
	bits := family.BitLen()
	return &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}
}

// families drops addresses of IPv6 if there is none.
func (w *World) families(addresses []netip.Prefix) []netip.Prefix {
	if w.IPv6 {
		return addresses
	}
	return addresses[:1]
}

// Address sets a device of the calling thread's namespace up and gives it addresses, without duplicate address
// detection.
func (w *World) Address(device string, addresses []netip.Prefix) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s: %w", device, err)
	}
	for _, a := range w.families(addresses) {
		address := &netlink.Addr{IPNet: &net.IPNet{IP: a.Addr().AsSlice(), Mask: net.CIDRMask(a.Bits(), a.Addr().BitLen())}}
		if a.Addr().Is6() {
			address.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, address); err != nil {
			return fmt.Errorf("add address %s to %s: %w", a, device, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", device, err)
	}
	return nil
}

// Forwarded returns how many packets the router's stack has forwarded. Those that a provider has shortened are not
// among them.
func (w *World) Forwarded() (total uint64, err error) {
	err = w.Router.Do(func() error {
		total, err = forwarded("/proc/thread-self/net")
		return err
	})
	return total, err
}

// forwarded reads the counters of both families (RFC 4293: ipForwDatagrams, ipv6IfStatsOutForwDatagrams).
func forwarded(dir string) (total uint64, err error) {
	text, err := os.ReadFile(dir + "/snmp")
	if err != nil {
		return 0, err
	}
	if total, err = snmpForwarded(string(text)); err != nil {
		return 0, err
	}
	text, err = os.ReadFile(dir + "/snmp6")
	if os.IsNotExist(err) {
		return total, nil
	}
	if err != nil {
		return 0, err
	}
	more, err := snmp6Forwarded(string(text))
	return total + more, err
}

var errNoCounter = fmt.Errorf("the kernel does not count forwarded packets: %w", fs.ErrNotExist)
