// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
)

// A Rule is a routing rule, by what it selects packets.
type Rule struct {
	Priority uint32
	IPv6     bool
	// To is the network to which it applies; invalid: all. Input is the device by which packets arrive; empty: any;
	// lo: what the node itself sends.
	To    netip.Prefix
	Input string
	// Source, Ports, TOS and Users: by the source address; by protocol or ports; by the traffic class or flow
	// label; by the user of the socket.
	Source, Ports, TOS, Users bool
	// Mark and MarkMask: by the mark of packets. Tunnel: by the key with which a packet came by a tunnel in
	// external mode.
	Mark, MarkMask uint32
	Tunnel         bool
	Inverted       bool // it selects all other packets
}

// Of linux/fib_rules.h, in Linux 6.14.
const (
	fraTo        = 1 // FRA_DST
	fraInput     = 3 // FRA_IIFNAME
	fraPriority  = 6
	fraMark      = 10
	fraTunnel    = 12
	fraMarkMask  = 16
	fraUsers     = 20 // FRA_UID_RANGE
	fraProtocol  = 22 // FRA_IP_PROTO
	fraSPort     = 23
	fraDPort     = 24
	fraDSCP      = 25
	fraFlowLabel = 26
)

// Rules returns the routing rules of both families.
func (n *Network) Rules() ([]Rule, error) { return read(n, Rules, &n.rules, listRules) }

func listRules() (all []Rule, _ error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		objects, err := netdev.Objects(unix.NETLINK_ROUTE, unix.RTM_GETRULE, unix.RTM_NEWRULE, nl.NewIfInfomsg(family).Serialize(), unix.SizeofRtMsg)
		if err != nil {
			return nil, fmt.Errorf("list routing rules: %w", err)
		}
		for _, o := range objects {
			all = append(all, parseRule(o))
		}
	}
	return all, nil
}

func parseRule(o netdev.Object) (r Rule) {
	h := nl.DeserializeRtMsg(o.Header) // struct fib_rule_hdr has its layout
	r.IPv6, r.TOS, r.Inverted = h.Family == unix.AF_INET6, h.Tos != 0, h.Flags&unix.FIB_RULE_INVERT != 0
	r.Source = h.Src_len > 0
	for _, a := range o.Attributes {
		switch a.Attr.Type {
		case fraPriority:
			r.Priority = attributeUint32(a.Value)
		case fraMark:
			r.Mark = attributeUint32(a.Value)
		case fraMarkMask:
			r.MarkMask = attributeUint32(a.Value)
		case fraTo:
			if to, ok := netip.AddrFromSlice(a.Value); ok {
				r.To = netip.PrefixFrom(to, int(h.Dst_len)).Masked()
			}
		case fraInput:
			r.Input = string(bytes.TrimRight(a.Value, "\x00"))
		case fraUsers:
			r.Users = true
		case fraTunnel:
			r.Tunnel = true
		case fraProtocol, fraSPort, fraDPort:
			r.Ports = true
		case fraDSCP, fraFlowLabel:
			r.TOS = true
		}
	}
	return r
}

// MarkedOnly reports whether the rule needs a mark that packets do not have as they arrive.
func (r *Rule) MarkedOnly() bool { return r.Mark&r.MarkMask != 0 && !r.Inverted }

func (r *Rule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s rule %d", map[bool]string{false: "IPv4", true: "IPv6"}[r.IPv6], r.Priority)
	if r.MarkMask != 0 {
		fmt.Fprintf(&b, " by fwmark %#x/%#x", r.Mark, r.MarkMask)
	}
	if r.Tunnel {
		b.WriteString(" by tun_id")
	}
	return b.String()
}
