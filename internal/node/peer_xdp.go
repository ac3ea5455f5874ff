// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
)

// Modes of XDP at a device (XDP_ATTACHED_* of linux/if_link.h).
const (
	xdpNative   = 1
	xdpMultiple = 4 // of several modes, one of them may be native
)

// PeerXDP returns the ID of the native XDP program at a device of another network namespace; 0: none. namespace is the
// ID that the caller's network namespace has for it (IFLA_LINK_NETNSID). Packets that a program redirects to the device
// (bpf_redirect_peer) skip such a program, but not one in generic mode. The kernel does not tell its changes here.
func PeerXDP(namespace, index int) (program uint32, err error) {
	messages, err := netdev.Dump(func() ([][]byte, error) {
		r := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
		about := nl.NewIfInfomsg(unix.AF_UNSPEC)
		about.Index = int32(index)
		r.AddData(about)
		r.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(namespace)))) // Linux 4.20
		return r.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	})
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) { // the device or its namespace is gone
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read device %d of network namespace ID %d: %w", index, namespace, err)
	}
	for _, m := range messages {
		o, err := netdev.ObjectOf(m, unix.SizeofIfInfomsg)
		if err != nil {
			return 0, err
		}
		for _, a := range o.Attributes {
			if a.Attr.Type == unix.IFLA_XDP {
				return nativeXDP(a.Value)
			}
		}
	}
	return 0, nil
}

func nativeXDP(b []byte) (program uint32, err error) {
	attributes, err := nl.ParseRouteAttr(b)
	if err != nil {
		return 0, err
	}
	native := false
	for _, a := range attributes {
		switch kind := a.Attr.Type & nl.NLA_TYPE_MASK; {
		case kind == nl.IFLA_XDP_ATTACHED && len(a.Value) == 1:
			native = a.Value[0] == xdpNative || a.Value[0] == xdpMultiple
		case (kind == nl.IFLA_XDP_PROG_ID || kind == xdpNativeProgram) && len(a.Value) == 4:
			program = binary.NativeEndian.Uint32(a.Value)
		}
	}
	if !native {
		return 0, nil
	}
	return program, nil
}

const xdpNativeProgram = 5 // IFLA_XDP_DRV_PROG_ID
