// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
)

// An XFRMDirection says which packets a policy is for (XFRM_POLICY_* of linux/xfrm.h). A forwarded packet has to pass
// the policies of both XFRMForward and XFRMOut.
type XFRMDirection uint8

const (
	XFRMIn      XFRMDirection = iota // to the node itself
	XFRMOut                          // that leave the node
	XFRMForward                      // that the node forwards, as they have arrived
	xfrmDirections
)

func (d XFRMDirection) String() string { return [xfrmDirections]string{"in", "out", "fwd"}[d] }

// XFRMPorts match a port if it has the bits of Value below Mask.
type XFRMPorts struct{ Value, Mask uint16 }

func (p XFRMPorts) has(port uint16) bool { return (port^p.Value)&p.Mask == 0 }

// An XFRMPolicy is a policy that does more than allow packets: it blocks them, or requires a transformation such as
// ESP. It is comparable.
type XFRMPolicy struct {
	Direction           XFRMDirection
	Source, Destination netip.Prefix
	// Protocol is 0 if it matches any.
	Protocol                    uint8
	SourcePort, DestinationPort XFRMPorts
	// Mark matches packets that have it below MarkMask.
	Mark, MarkMask uint32
	// Interface is the if_id of the xfrm interfaces whose packets it matches; 0: those of no such interface.
	Interface uint32
	// Block: it drops packets. Default: it is the action for packets without a policy (ip xfrm policy setdefault).
	Block, Default bool
	// Transforms names what it requires, such as "esp tunnel".
	Transforms string
}

// String describes a policy in the words of ip-xfrm(8).
func (p XFRMPolicy) String() string {
	if p.Default {
		return fmt.Sprintf("XFRM default policy dir %s: block", p.Direction)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "XFRM policy dir %s src %s dst %s", p.Direction, p.Source, p.Destination)
	if p.Protocol != 0 {
		fmt.Fprintf(&b, " proto %d", p.Protocol)
	}
	if p.SourcePort.Mask != 0 {
		fmt.Fprintf(&b, " sport %d", p.SourcePort.Value)
	}
	if p.DestinationPort.Mask != 0 {
		fmt.Fprintf(&b, " dport %d", p.DestinationPort.Value)
	}
	if p.MarkMask != 0 {
		fmt.Fprintf(&b, " mark %#x/%#x", p.Mark, p.MarkMask)
	}
	if p.Interface != 0 {
		fmt.Fprintf(&b, " if_id %#x", p.Interface)
	}
	if p.Block {
		return b.String() + ": block"
	}
	return b.String() + ": " + p.Transforms
}

// MatchesUnmarked reports whether the policy can match packets without a mark.
func (p *XFRMPolicy) MatchesUnmarked() bool { return p.Mark&p.MarkMask == 0 }

// Matches reports whether the policy can match packets between two ends, with some mark and by some device. Protocol
// is a number of IPPROTO_*.
func (p *XFRMPolicy) Matches(source, destination netip.AddrPort, protocol uint8) bool {
	return p.Source.Contains(source.Addr()) && p.Destination.Contains(destination.Addr()) &&
		(p.Protocol == 0 || p.Protocol == protocol) && p.SourcePort.has(source.Port()) && p.DestinationPort.has(destination.Port())
}

// XFRMPolicies returns the policies that do more than allow packets, and the default actions that block. Policies of
// sockets are none: they concern packets of the node's own programs.
func (n *Network) XFRMPolicies() ([]XFRMPolicy, error) {
	all, err := read(n, XFRM, &n.xfrm, listXFRMPolicies)
	return slices.Clone(all), err
}

func listXFRMPolicies() ([]XFRMPolicy, error) {
	objects, err := netdev.Objects(unix.NETLINK_XFRM, nl.XFRM_MSG_GETPOLICY, nl.XFRM_MSG_NEWPOLICY, nil, policySize)
	if errors.Is(err, unix.EPROTONOSUPPORT) { // a kernel without XFRM
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list XFRM policies: %w", err)
	}
	var all []XFRMPolicy
	for _, o := range objects {
		p, err := parseXFRMPolicy(o)
		if err != nil {
			return nil, fmt.Errorf("list XFRM policies: %w", err)
		}
		if p.Direction < xfrmDirections && (p.Block || p.Transforms != "") {
			all = append(all, p)
		}
	}
	defaults, err := xfrmDefaults()
	return append(all, defaults...), err
}

// Layout of struct xfrm_userpolicy_info (linux/xfrm.h): struct xfrm_selector, lifetimes, then these.
const (
	selectorSize      = 56
	policyDirectionAt = selectorSize + 64 + 32 + 8
	policyActionAt    = policyDirectionAt + 1
	policySize        = 168
	templateSize      = 64 // of struct xfrm_user_tmpl
)

const xfrmPolicyBlock = 1 // XFRM_POLICY_BLOCK

func parseXFRMPolicy(o netdev.Object) (p XFRMPolicy, err error) {
	p.Direction, p.Block = XFRMDirection(o.Header[policyDirectionAt]), o.Header[policyActionAt] == xfrmPolicyBlock
	if err := p.parseSelector(o.Header[:selectorSize]); err != nil {
		return p, err
	}
	for _, a := range o.Attributes {
		switch {
		case a.Attr.Type == nl.XFRMA_TMPL:
			p.Transforms = transforms(a.Value)
		case a.Attr.Type == nl.XFRMA_MARK && len(a.Value) >= 8:
			p.Mark, p.MarkMask = binary.NativeEndian.Uint32(a.Value), binary.NativeEndian.Uint32(a.Value[4:])
		case a.Attr.Type == nl.XFRMA_IF_ID && len(a.Value) >= 4:
			p.Interface = binary.NativeEndian.Uint32(a.Value)
		}
	}
	return p, nil
}

// parseSelector parses struct xfrm_selector. Its device is not kept: it is that of a route that the policy's reader
// cannot tell.
func (p *XFRMPolicy) parseSelector(b []byte) (err error) {
	p.DestinationPort = XFRMPorts{binary.BigEndian.Uint16(b[32:]), binary.BigEndian.Uint16(b[34:])}
	p.SourcePort = XFRMPorts{binary.BigEndian.Uint16(b[36:]), binary.BigEndian.Uint16(b[38:])}
	family := binary.NativeEndian.Uint16(b[40:])
	p.Protocol = b[44]
	if p.Destination, err = selectorPrefix(family, b[:16], b[42]); err != nil {
		return err
	}
	p.Source, err = selectorPrefix(family, b[16:32], b[43])
	return err
}

func selectorPrefix(family uint16, address []byte, bits uint8) (netip.Prefix, error) {
	size := 16
	switch family {
	case unix.AF_INET:
		size = 4
	case unix.AF_INET6:
	default:
		return netip.Prefix{}, fmt.Errorf("a selector of address family %d", family)
	}
	a, _ := netip.AddrFromSlice(address[:size])
	prefix := netip.PrefixFrom(a, int(bits))
	if !prefix.IsValid() {
		return prefix, fmt.Errorf("a selector with prefix length %d", bits)
	}
	return prefix.Masked(), nil
}

// Names of ip-xfrm(8).
var (
	transformNames = map[uint8]string{unix.IPPROTO_ESP: "esp", unix.IPPROTO_AH: "ah", unix.IPPROTO_COMP: "comp"}
	modeNames      = map[uint8]string{0: "transport", 1: "tunnel", 4: "beet"}
)

// transforms names the templates of a policy (struct xfrm_user_tmpl).
func transforms(b []byte) string {
	var all []string
	for ; len(b) >= templateSize; b = b[templateSize:] {
		protocol, mode := b[20], b[48]
		all = append(all, fmt.Sprintf("%s %s", named(transformNames, protocol, "proto"), named(modeNames, mode, "mode")))
	}
	return strings.Join(all, ", ")
}

func named(names map[uint8]string, n uint8, what string) string {
	if name, ok := names[n]; ok {
		return name
	}
	return fmt.Sprintf("%s %d", what, n)
}

// Of struct xfrm_userpolicy_default, since Linux 5.15.
const (
	xfrmGetDefault  = 0x28 // XFRM_MSG_GETDEFAULT
	xfrmBlock       = 1    // XFRM_USERPOLICY_BLOCK
	xfrmDefaultSize = 3
)

// xfrmDefaults returns a policy for both families for each direction whose default action is to block.
func xfrmDefaults() (all []XFRMPolicy, err error) {
	r := nl.NewNetlinkRequest(xfrmGetDefault, 0)
	r.AddRawData(make([]byte, xfrmDefaultSize))
	answer, err := r.Execute(unix.NETLINK_XFRM, xfrmGetDefault)
	if errors.Is(err, unix.EINVAL) { // before Linux 5.15
		return nil, nil
	}
	if err != nil || len(answer) != 1 || len(answer[0]) < xfrmDefaultSize {
		return nil, fmt.Errorf("read the default actions of XFRM: %d answers, %w", len(answer), err)
	}
	// The fields of the structure are in the order in, fwd, out.
	for i, d := range []XFRMDirection{XFRMIn, XFRMForward, XFRMOut} {
		if answer[0][i] != xfrmBlock {
			continue
		}
		for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			everything := netip.PrefixFrom(any, 0)
			all = append(all, XFRMPolicy{Direction: d, Source: everything, Destination: everything, Block: true, Default: true})
		}
	}
	return all, nil
}
