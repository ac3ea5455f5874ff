// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// giveSecondAddresses gives each pod and the judged node another address of each family, with routes to them.
func (s *Side) giveSecondAddresses() error {
	fabric, node := s.Lab.Host("fabric"), s.Lab.Host(judged)
	for _, family := range []string{"v4", "v6"} {
		for _, pod := range s.Lab.Pods() {
			second := secondOf(pod, family)
			if err := addAddress(pod, second); err != nil {
				return err
			}
			if err := addRoute(pod.Node, route{to: whole(second), device: pod.Name}); err != nil {
				return err
			}
		}
		second := secondOf(node, family)
		if err := addAddress(node, second); err != nil {
			return err
		}
		if err := addRoute(fabric, route{to: whole(second), device: judged, via: addressOf(node, family)}); err != nil {
			return err
		}
	}
	return nil
}

// addAddress adds an address that the host does not choose as a source by itself: with IPv4 it chooses the
// first, with IPv6 any that is not deprecated.
func addAddress(h *lab.Host, addr netip.Addr) error {
	nl, link, err := h.OpenDevice("eth0")
	if err != nil {
		return err
	}
	defer nl.Close()
	to := whole(addr)
	object := &netlink.Addr{IPNet: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Bits())}}
	if addr.Is6() {
		object.Flags, object.ValidLft, object.PreferedLft = unix.IFA_F_NODAD, math.MaxInt32, 0
	}
	if err := nl.AddrAdd(link, object); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("host %s: address %s: %w", h.Name, addr, err)
	}
	return nil
}

// route is a route of a host; table 0 is the main one.
type route struct {
	to     netip.Prefix
	device string
	via    netip.Addr
	table  int
}

func addRoute(h *lab.Host, r route) error {
	nl, link, err := h.OpenDevice(r.device)
	if err != nil {
		return err
	}
	defer nl.Close()
	to := &net.IPNet{IP: r.to.Addr().AsSlice(), Mask: net.CIDRMask(r.to.Bits(), r.to.Addr().BitLen())}
	object := &netlink.Route{Dst: to, LinkIndex: link.Attrs().Index, Table: r.table}
	if r.via.IsValid() {
		object.Gw = r.via.AsSlice()
	} else {
		object.Scope = netlink.SCOPE_LINK
	}
	if err := nl.RouteAdd(object); err != nil {
		return fmt.Errorf("host %s: route to %s: %w", h.Name, r.to, err)
	}
	return nil
}

func whole(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }

// routeServices has the fabric route packets from the other hosts to Service addresses to the judged node. The
// judged node's own packets there were not translated, and are not delivered.
func (s *Side) routeServices() error {
	const table = 100
	fabric, node := s.Lab.Host("fabric"), s.Lab.Host(judged)
	for _, prefix := range servicePrefixes {
		gateway := node.Addr4
		if prefix.Addr().Is6() {
			gateway = node.Addr6
		}
		if err := addRoute(fabric, route{prefix, judged, gateway, table}); err != nil {
			return err
		}
	}
	nl, err := fabric.Netlink()
	if err != nil {
		return err
	}
	defer nl.Close()
	for _, device := range []string{"node-b", "client"} {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			rule := netlink.NewRule()
			rule.IifName, rule.Table, rule.Family, rule.Priority = device, table, family, 1000
			if err := nl.RuleAdd(rule); err != nil {
				return fmt.Errorf("rule for packets of %s: %w", device, err)
			}
		}
	}
	return nil
}

// returnByNode routes replies to the other node's pods through the judged node if their requests came through
// it, even between neighbouring pods. kube-proxy does not masquerade pods, and replies to another pod would
// bypass it.
func (s *Side) returnByNode() error {
	const table = 101
	fabric, node, other := s.Lab.Host("fabric"), s.Lab.Host(judged), s.Lab.Host("node-b")
	for i, prefix := range otherPods {
		gateway, family := [2]netip.Addr{node.Addr4, node.Addr6}[i], [2]int{unix.AF_INET, unix.AF_INET6}[i]
		if err := addRoute(fabric, route{prefix, judged, gateway, table}); err != nil {
			return err
		}
		next := [2]netip.Addr{fabric.Addr4, fabric.Addr6}[i]
		if err := addRoute(other, route{prefix, "eth0", next, table}); err != nil {
			return err
		}
		for _, device := range []string{"lo", "node-b"} { // lo: the fabric's own packets
			if err := addRule(fabric, device, prefix, family, table); err != nil {
				return err
			}
		}
		for _, device := range []string{"lo", "b1", "b2", "b3"} {
			if err := addRule(other, device, prefix, family, table); err != nil {
				return err
			}
		}
	}
	return nil
}

// otherPods are the pods of the other node.
var otherPods = []netip.Prefix{netip.MustParsePrefix("10.10.2.0/24"), netip.MustParsePrefix("fd00:10:2::/64")}

func addRule(h *lab.Host, device string, to netip.Prefix, family, table int) error {
	nl, err := h.Netlink()
	if err != nil {
		return err
	}
	defer nl.Close()
	rule := netlink.NewRule()
	rule.IifName, rule.Table, rule.Family, rule.Priority = device, table, family, 1001
	rule.Dst = &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}
	if err := nl.RuleAdd(rule); err != nil {
		return fmt.Errorf("host %s: rule for packets of %s to %s: %w", h.Name, device, to, err)
	}
	return nil
}

// refuse has the fabric answer untranslated packets, and packets to addresses without a host, each kind in its
// own way. The kernel itself answers only about once a second, and no setting of a network namespace changes
// that.
func (s *Side) refuse() error {
	rules := "add table inet refused\n" +
		"add chain inet refused arriving { type filter hook prerouting priority 0; }\n"
	add := func(from string, to netip.Prefix, how4, how6 string) {
		family, how := "ip", "icmp type "+how4
		if to.Addr().Is6() {
			family, how = "ip6", "icmpv6 type "+how6
		}
		rules += fmt.Sprintf("add rule inet refused arriving %s %s daddr %s reject with %s\n", from, family, to, how)
	}
	for _, prefix := range servicePrefixes {
		add("iifname "+judged, prefix, "net-unreachable", "no-route")
	}
	for _, prefix := range nobodyPrefixes {
		add("", prefix, "host-unreachable", "addr-unreachable")
	}
	nft := s.Lab.Host("fabric").Command(context.Background(), "nft", "-f", "-")
	nft.Stdin = strings.NewReader(rules)
	if out, err := nft.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w\n%s", err, out)
	}
	return nil
}
