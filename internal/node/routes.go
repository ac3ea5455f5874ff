// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
)

// A Route is a route of some table.
type Route struct {
	Type   uint8 // RTN_*
	Table  uint32
	To     netip.Prefix
	Metric uint32
	TOS    uint8 // IPv4: it is for packets with these bits of the traffic class; 0: for all
	From   bool  // IPv6: it is for packets of some sources
	MTU    uint32
	Source netip.Addr // of the node's own packets; invalid: not prescribed
	Hops   []NextHop  // none: it rejects packets
	// Object is the nexthop object that has the next hops; 0: none. The route itself may not tell them.
	Object uint32
}

// A NextHop is one of those of a route.
type NextHop struct {
	Device  int
	Gateway netip.Addr // invalid: the network is at the device
	Encap   Encap
}

// Encap is what a route adds to packets (enum lwtunnel_encap_types); 0: nothing.
type Encap uint16

// routeObject is the attribute RTA_NH_ID of a route.
const routeObject = 30

// rejects reports whether a route drops or rejects packets.
func (r *Route) rejects() bool {
	return r.Type == unix.RTN_UNREACHABLE || r.Type == unix.RTN_BLACKHOLE || r.Type == unix.RTN_PROHIBIT
}

// Those that the programs distinguish.
const (
	EncapIP4       Encap = 2
	EncapIP6       Encap = 4
	EncapSeg6Local Encap = 7 // what the node does with packets to an SRv6 segment
)

func (e Encap) String() string {
	names := [...]string{"", "mpls", "ip", "ila", "ip6", "seg6", "bpf", "seg6local", "rpl", "ioam6", "xfrm"} // as ip-route(8) has them
	if int(e) < len(names) {
		return names[e]
	}
	return fmt.Sprint(uint16(e))
}

func (r *Route) String() string {
	text := r.To.String()
	for i, h := range r.Hops {
		if i > 0 {
			text += ","
		}
		if h.Encap != 0 {
			text += " encap " + h.Encap.String()
		}
	}
	if r.Table != unix.RT_TABLE_MAIN {
		text += fmt.Sprintf(" table %d", r.Table)
	}
	return text
}

// Routes returns the routes of all tables that are unicast or reject packets. The latter have no next hops.
func (n *Network) Routes() ([]Route, error) { return read(n, Routes, &n.routes, listRoutes) }

func listRoutes() (all []Route, err error) {
	err = EachRoute(func() { all = nil }, func(r *Route) error {
		if r.Type == unix.RTN_UNICAST || r.rejects() {
			all = append(all, *r)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var objects map[uint32][]NextHop
	for i := range all {
		if all[i].Hops != nil || all[i].Object == 0 {
			continue
		}
		if objects == nil {
			if objects, err = nextHopObjects(); err != nil {
				return nil, err
			}
		}
		all[i].Hops = objects[all[i].Object]
	}
	return all, nil
}

// EachRoute calls visit with each route of all tables until it returns an error. It calls begin before the first one,
// also when it begins again because the routes have changed meanwhile.
func EachRoute(begin func(), visit func(*Route) error) error {
	var failed error
	_, err := netdev.Dump(func() ([]struct{}, error) {
		begin()
		r := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
		r.AddData(&nl.RtMsg{})
		return nil, r.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE, func(m []byte) bool {
			route, ok, err := parseRoute(m)
			if ok && err == nil {
				err = visit(&route)
			}
			failed = err
			return err == nil
		})
	})
	if err := errors.Join(failed, err); err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	return nil
}

// RouteOf returns the route of a message; the zero one if it is about something else. It is an error if messages were
// lost.
func RouteOf(m syscall.NetlinkMessage) (r Route, err error) {
	if t := m.Header.Type; t == 0 || t == unix.RTM_NEWROUTE || t == unix.RTM_DELROUTE {
		r, _, err = parseRoute(m.Data)
	}
	return r, err
}

// parseRoute ignores what is cached of routes.
func parseRoute(m []byte) (r Route, ok bool, err error) {
	o, err := netdev.ObjectOf(m, unix.SizeofRtMsg)
	if err != nil {
		return r, false, err
	}
	h := nl.DeserializeRtMsg(o.Header)
	unspecified := netip.IPv4Unspecified()
	switch h.Family {
	case unix.AF_INET:
	case unix.AF_INET6:
		unspecified = netip.IPv6Unspecified()
	default:
		return r, false, nil
	}
	if h.Flags&unix.RTM_F_CLONED != 0 {
		return r, false, nil
	}
	to := unspecified
	r.Type, r.Table, r.TOS, r.From = h.Type, uint32(h.Table), h.Tos, h.Src_len > 0
	var one NextHop
	for _, a := range o.Attributes {
		switch a.Attr.Type {
		case unix.RTA_DST:
			to, _ = netip.AddrFromSlice(a.Value)
		case unix.RTA_TABLE:
			r.Table = attributeUint32(a.Value)
		case unix.RTA_PRIORITY:
			r.Metric = attributeUint32(a.Value)
		case unix.RTA_PREFSRC:
			r.Source, _ = netip.AddrFromSlice(a.Value)
		case unix.RTA_OIF:
			one.Device = int(attributeUint32(a.Value))
		case unix.RTA_METRICS:
			r.MTU, err = parseRouteMTU(a.Value)
		case unix.RTA_MULTIPATH:
			r.Hops, err = parseNextHops(a.Value)
		case routeObject:
			r.Object = attributeUint32(a.Value)
		default:
			one.parse(a.Attr.Type, a.Value)
		}
		if err != nil {
			return r, false, err
		}
	}
	switch {
	case r.rejects():
		r.Hops = nil // IPv6: at lo
	case r.Hops == nil && (one.Device != 0 || r.Object == 0):
		r.Hops = []NextHop{one}
	}
	r.To = netip.PrefixFrom(to, int(h.Dst_len))
	return r, r.To.IsValid(), nil
}

func attributeUint32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

func parseRouteMTU(b []byte) (mtu uint32, err error) {
	metrics, err := nl.ParseRouteAttr(b)
	for _, m := range metrics {
		if m.Attr.Type == unix.RTAX_MTU {
			mtu = attributeUint32(m.Value)
		}
	}
	return mtu, err
}

// parse takes over an attribute that both routes with one next hop and next hops of several have.
func (h *NextHop) parse(kind uint16, b []byte) {
	switch kind {
	case unix.RTA_GATEWAY:
		h.Gateway, _ = netip.AddrFromSlice(b)
	case unix.RTA_VIA: // struct rtvia: a gateway of the other family
		if len(b) > 2 {
			h.Gateway, _ = netip.AddrFromSlice(b[2:])
		}
	case unix.RTA_ENCAP_TYPE:
		if len(b) >= 2 {
			h.Encap = Encap(binary.NativeEndian.Uint16(b))
		}
	}
}

func parseNextHops(b []byte) (all []NextHop, err error) {
	for len(b) >= unix.SizeofRtNexthop {
		n := nl.DeserializeRtNexthop(b)
		length := int(n.RtNexthop.Len)
		if length < unix.SizeofRtNexthop || length > len(b) {
			return nil, fmt.Errorf("a next hop of %d bytes", length)
		}
		attributes, err := nl.ParseRouteAttr(b[unix.SizeofRtNexthop:length])
		if err != nil {
			return nil, err
		}
		hop := NextHop{Device: int(n.RtNexthop.Ifindex)}
		for _, a := range attributes {
			hop.parse(a.Attr.Type&nl.NLA_TYPE_MASK, a.Value)
		}
		all = append(all, hop)
		b = b[min((length+3)&^3, len(b)):]
	}
	return all, nil
}
