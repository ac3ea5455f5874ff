// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
)

// sysctl is a path below /proc/sys/net and its value.
type sysctl struct{ path, value string }

// hostSysctls are set in every new namespace, before its first device: a new namespace copies IPv4 settings
// from the machine, so each relevant one is set explicitly.
func hostSysctls(router bool) []sysctl {
	forward := "0"
	if router {
		forward = "1"
	}
	return []sysctl{
		{"ipv4/ip_forward", forward},
		{"ipv6/conf/all/forwarding", forward},
		{"ipv6/conf/default/forwarding", forward},
		{"ipv6/conf/all/disable_ipv6", "0"},
		{"ipv6/conf/default/disable_ipv6", "0"},
		// Addresses are usable at once: no duplicate address detection,
		// no router discovery.
		{"ipv6/conf/all/accept_dad", "0"},
		{"ipv6/conf/default/accept_dad", "0"},
		{"ipv6/conf/all/accept_ra", "0"},
		{"ipv6/conf/default/accept_ra", "0"},
		// Replies that leave by another route than the request arrived are legitimate here (direct
		// server return).
		{"ipv4/conf/all/rp_filter", "0"},
		{"ipv4/conf/default/rp_filter", "0"},
		{"ipv4/conf/all/send_redirects", "0"},
		{"ipv4/conf/default/send_redirects", "0"},
		// Tests send many packets to unreachable destinations.
		{"ipv4/icmp_ratemask", "0"},
		{"ipv6/icmp/ratelimit", "0"},
	}
}

// optionalSysctls exist only if bridge netfilter is loaded.
var optionalSysctls = []sysctl{
	{"bridge/bridge-nf-call-iptables", "0"},
	{"bridge/bridge-nf-call-ip6tables", "0"},
	{"bridge/bridge-nf-call-arptables", "0"},
}

// writeSysctls writes to the network namespace of the calling thread.
func writeSysctls(settings []sysctl) error {
	for _, s := range settings {
		if err := os.WriteFile(filepath.Join("/proc/sys/net", s.path), []byte(s.value), 0o644); err != nil {
			return fmt.Errorf("setting sysctl net/%s=%s: %w", s.path, s.value, err)
		}
	}
	return nil
}

// createHost creates the host's namespace, without devices except lo.
func createHost(lab string, h *hostPlan) error {
	return createNetNS(netnsPath(lab, h.name), func() error {
		if err := writeSysctls(hostSysctls(h.router)); err != nil {
			return err
		}
		if err := writeSysctls(optionalSysctls); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer nl.Close()
		return setUp(nl, "lo")
	})
}

// hostHandle is an open namespace: ns to put devices into it, nl to configure it.
type hostHandle struct {
	ns *os.File
	nl *netlink.Handle
}

func (h hostHandle) close() {
	h.ns.Close()
	h.nl.Close()
}

func openHost(lab, name string) (hostHandle, error) {
	nl, err := netlinkAt(netnsPath(lab, name))
	if err != nil {
		return hostHandle{}, fmt.Errorf("host %s: opening netlink: %w", name, err)
	}
	ns, err := os.Open(netnsPath(lab, name))
	if err != nil {
		nl.Close()
		return hostHandle{}, fmt.Errorf("host %s: opening its network namespace: %w", name, err)
	}
	return hostHandle{ns, nl}, nil
}

// applyNetwork creates the plan's links, addresses and routes in the lab's existing namespaces. Every device is
// created inside the lab: none ever appears in the caller's namespace.
func applyNetwork(lab string, p *topologyPlan, progress func()) error {
	handles := map[string]hostHandle{}
	for _, h := range p.hosts {
		handle, err := openHost(lab, h.name)
		if err != nil {
			return err
		}
		defer handle.close()
		handles[h.name] = handle
	}
	for _, h := range p.hosts {
		if h.bridge == nil {
			continue
		}
		if err := h.bridge.create(handles[h.name].nl); err != nil {
			return fmt.Errorf("host %s: %w", h.name, err)
		}
	}
	for _, l := range p.links {
		if err := l.create(lab, handles[l.host], handles[l.peerHost]); err != nil {
			return fmt.Errorf("link %s/%s to %s/%s: %w", l.host, l.device, l.peerHost, l.peerDevice, err)
		}
		progress()
	}
	for _, h := range p.hosts {
		if h.overlay != nil {
			if err := h.overlay.create(lab, handles[h.name].nl); err != nil {
				return fmt.Errorf("host %s: %w", h.name, err)
			}
		}
		if err := h.configure(handles[h.name].nl); err != nil {
			return fmt.Errorf("host %s: %w", h.name, err)
		}
		progress()
	}
	for _, h := range p.hosts {
		if err := awaitAddresses(handles[h.name].nl, h.own()...); err != nil {
			return fmt.Errorf("host %s: %w", h.name, err)
		}
	}
	return nil
}

// netlinkAt opens a routing socket in the namespace at path. The library's own NewHandleAt may use the
// process's first thread; this does not.
func netlinkAt(path string) (nl *netlink.Handle, err error) {
	err = inNetNS(path, func() error {
		nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	return nl, err
}

// pair is the description of the two devices.
func (l linkPlan) pair(peer hostHandle) (pair netlink.Link, config string) {
	attrs, inside := netlink.NewLinkAttrs(), netlink.NewLinkAttrs()
	attrs.Name, attrs.Index, attrs.MTU = l.device, l.index, l.mtu
	if l.kind != PodsNetkit && l.kind != PodsNetkitL2 {
		return &netlink.Veth{LinkAttrs: attrs, PeerName: l.peerDevice, PeerNamespace: netlink.NsFd(int(peer.ns.Fd())), PeerMTU: uint32(l.mtu)}, "CONFIG_VETH"
	}
	inside.Name, inside.MTU, inside.Namespace = l.peerDevice, l.mtu, netlink.NsFd(int(peer.ns.Fd()))
	netkit := &netlink.Netkit{LinkAttrs: attrs, Mode: netlink.NETKIT_MODE_L3, Scrub: netlink.NETKIT_SCRUB_DEFAULT, PeerScrub: netlink.NETKIT_SCRUB_DEFAULT}
	if l.kind == PodsNetkitL2 {
		netkit.Mode = netlink.NETKIT_MODE_L2
	}
	netkit.SetPeerAttrs(&inside)
	return netkit, "CONFIG_NETKIT, Linux 6.7"
}

// create creates the pair of devices between two open hosts and sets it up.
func (l linkPlan) create(lab string, host, peer hostHandle) error {
	pair, config := l.pair(peer)
	if err := host.nl.LinkAdd(pair); err != nil {
		return fmt.Errorf("creating the %s pair (needs %s): %w", pair.Type(), config, err)
	}
	if l.proxyARP {
		// A delay of 0 replies at once; the default waits up to 0.8 s.
		err := inNetNS(netnsPath(lab, l.host), func() error {
			return writeSysctls([]sysctl{
				{"ipv4/conf/" + l.device + "/proxy_arp", "1"},
				{"ipv4/neigh/" + l.device + "/proxy_delay", "0"},
			})
		})
		if err != nil {
			return err
		}
	}
	if l.master != "" {
		if err := host.setMaster(l.device, l.master); err != nil {
			return err
		}
	}
	if err := setUp(host.nl, l.device); err != nil {
		return err
	}
	if err := setUp(peer.nl, l.peerDevice); err != nil {
		return err
	}
	return l.addPermanent(host, peer)
}

func setUp(nl *netlink.Handle, device string) error {
	link, err := nl.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s: %w", device, err)
	}
	if err := nl.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting device %s up: %w", device, err)
	}
	return nil
}

// own are the addresses.
func (c *configPlan) own() (all []netip.Addr) {
	for _, a := range c.addresses {
		all = append(all, a.prefix.Addr())
	}
	return all
}

// configure adds addresses, routes and rules to a host whose devices are up.
func (c *configPlan) configure(nl *netlink.Handle) error {
	links, err := netdev.Dump(nl.LinkList)
	if err != nil {
		return fmt.Errorf("listing devices: %w", err)
	}
	byName := map[string]netlink.Link{}
	for _, link := range links {
		byName[link.Attrs().Name] = link
	}
	for _, a := range c.addresses {
		if err := addAddress(nl, byName[a.device], a.prefix); err != nil {
			return err
		}
	}
	for _, r := range c.routes {
		if err := nl.RouteAdd(r.route(byName)); err != nil {
			return fmt.Errorf("adding route %s via %v dev %q: %w", r.to, r.via, r.device, err)
		}
	}
	for _, r := range c.rules {
		if err := nl.RuleAdd(r.rule()); err != nil {
			return fmt.Errorf("adding a rule from %s to %s (needs CONFIG_IP_MULTIPLE_TABLES): %w", r.from, r.to, err)
		}
	}
	return nil
}

func (r routePlan) route(links map[string]netlink.Link) *netlink.Route {
	route := &netlink.Route{Dst: ipNet(r.to), Priority: r.metric, Table: r.table}
	if r.device == "" {
		route.Type = unix.RTN_UNREACHABLE
		return route
	}
	route.LinkIndex = links[r.device].Attrs().Index
	if r.via.IsValid() {
		route.Gw = r.via.AsSlice()
	} else if r.to.Addr().Is4() {
		route.Scope = netlink.SCOPE_LINK
	}
	if r.onLink {
		route.Flags = unix.RTNH_F_ONLINK
	}
	if r.source.IsValid() {
		route.Src = r.source.AsSlice()
	}
	return route
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
