// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/util/wakeup"
)

// Routing is what the result of a route look-up by addresses and devices alone lacks (bpf_fib_lookup).
type Routing struct {
	MTUs RouteMTUs
	// Encaps are the routes with something that the kernel adds to packets, by network. Device is that of a route
	// which adds an outer IP header and is the only one to the network; 0: programs cannot use the route.
	Encaps map[netip.Prefix]EncapRoute
	// Unusable are the routes of Encaps without a device, and those of other tables than main.
	Unusable []Route
	// BySource, ByPorts and ByTOS: rules select by these, or routes do.
	BySource, ByPorts, ByTOS bool
	// ByMark are the rules that select packets with a mark, or with the key of a tunnel.
	ByMark []Rule
	// UsesPMTU: forwarded packets obey path MTUs that sockets have learned (net.ipv4.ip_forward_use_pmtu).
	UsesPMTU bool
}

// An EncapRoute is one of Routing.Encaps. MTU is the route's; 0: it has none.
type EncapRoute struct{ Device, MTU uint32 }

// Routing returns what look-ups lack.
func (n *Network) Routing() (r Routing, _ error) {
	devices, err := n.Devices()
	if err != nil {
		return r, err
	}
	mtus := map[int]int{}
	for _, d := range devices {
		mtus[d.Index] = d.MTU
	}
	routes, err := n.Routes()
	if err != nil {
		return r, err
	}
	rules, err := n.Rules()
	if err != nil {
		return r, err
	}
	text, err := os.ReadFile(netdev.SysctlRoot + "/ipv4/ip_forward_use_pmtu")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return r, fmt.Errorf("read ip_forward_use_pmtu: %w", err)
	}
	r = NewRouting(routes, rules, mtus)
	r.UsesPMTU = strings.TrimSpace(string(text)) == "1"
	return r, nil
}

// NewRouting returns what follows from routes, rules and the MTUs of devices by index.
func NewRouting(routes []Route, rules []Rule, deviceMTUs map[int]int) Routing {
	r := Routing{MTUs: NewRouteMTUs(routes, deviceMTUs), Encaps: map[netip.Prefix]EncapRoute{}}
	for i := range routes {
		if routes[i].rejects() {
			continue
		}
		r.BySource = r.BySource || routes[i].From
		r.ByTOS = r.ByTOS || routes[i].TOS != 0
		r.noteEncap(&routes[i])
	}
	for _, one := range r.Unusable { // a look-up does not tell the table
		for to := range r.Encaps {
			if one.To.Overlaps(to) {
				r.Encaps[to] = EncapRoute{}
			}
		}
	}
	for i := range rules {
		r.BySource = r.BySource || rules[i].Source
		r.ByPorts = r.ByPorts || rules[i].Ports
		r.ByTOS = r.ByTOS || rules[i].TOS
		if rules[i].MarkedOnly() || rules[i].Tunnel {
			r.ByMark = append(r.ByMark, rules[i])
		}
	}
	return r
}

// noteEncap adds a route that the kernel does not find for programs. What it adds beside an outer IP header is added
// where the stack sends a packet, and not where a program does.
func (r *Routing) noteEncap(route *Route) {
	if !slices.ContainsFunc(route.Hops, func(h NextHop) bool { return h.Encap != 0 && h.Encap != EncapSeg6Local }) {
		return
	}
	device := uint32(route.Hops[0].Device)
	usable := route.Table == unix.RT_TABLE_MAIN && !route.From && route.TOS == 0
	for _, h := range route.Hops {
		usable = usable && (h.Encap == EncapIP4 || h.Encap == EncapIP6) && h.Device == int(device)
	}
	if _, another := r.Encaps[route.To]; another {
		usable = false
	}
	if !usable {
		r.Unusable = append(r.Unusable, *route)
		device = 0
	}
	if route.Table == unix.RT_TABLE_MAIN {
		r.Encaps[route.To] = EncapRoute{Device: device, MTU: route.MTU}
	}
}

// HasRoutes reports whether any route is more than a look-up tells.
func (r *Routing) HasRoutes() bool {
	return len(r.MTUs.Of) > 0 || len(r.Encaps) > 0 || len(r.Unusable) > 0
}

// NotifyRouting sends a signal now and whenever Routing may have another result. A change of a route concerns only
// while `routes` returns true, and if the route itself has what Routing is about, or may have: without
// net.ipv4.nexthop_compat_mode a message names an object instead of its next hops.
func (n *Network) NotifyRouting(signal wakeup.Signal, routes func() bool) {
	n.NotifyIf(signal, Devices|Routes|Rules, func(m syscall.NetlinkMessage) bool {
		if m.Header.Type != unix.RTM_NEWROUTE && m.Header.Type != unix.RTM_DELROUTE || routes() {
			return true
		}
		r, err := RouteOf(m)
		return err != nil || r.Type == unix.RTN_UNICAST && (r.MTU != 0 || r.TOS != 0 || r.From || r.Hops == nil || slices.ContainsFunc(r.Hops, func(h NextHop) bool { return h.Encap != 0 }))
	})
}
