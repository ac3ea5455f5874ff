// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// events is a socket to which the kernel sends what changes in nf_tables.
type events struct{ fd int }

// newEvents returns nil if the kernel has no nfnetlink, and so no nf_tables.
func newEvents() (*events, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTABLES)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &events{fd}, nil
}

func (e *events) close() { unix.Close(e.fd) }

// largestEvents is more than the kernel puts into a message of several events (NLMSG_GOODSIZE).
const largestEvents = 1 << 16

// changed takes all events, and reports whether one is of a table that is not own, or the first own table is gone.
func (e *events) changed(own []string) (changed bool, err error) {
	buffer := make([]byte, largestEvents)
	gone := false
	for {
		n, _, err := unix.Recvfrom(e.fd, buffer, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return changed || gone, nil
		case errors.Is(err, unix.ENOBUFS): // events were lost
			changed = true
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return true, err
		case n > len(buffer):
			changed = true
		default:
			changed = concerns(buffer[:n], own, &gone) || changed
		}
	}
}

// concerns reports whether one of the messages is about a table that is not own. gone is whether the first own table
// was deleted and not created again.
func concerns(messages []byte, own []string, gone *bool) (foreign bool) {
	for len(messages) >= unix.SizeofNlMsghdr {
		size, kind := int(binary.NativeEndian.Uint32(messages)), binary.NativeEndian.Uint16(messages[4:])
		if size < unix.SizeofNlMsghdr || size > len(messages) {
			return true
		}
		body := messages[unix.SizeofNlMsghdr:size]
		switch what := kind & 0xff; {
		case kind>>8 != unix.NFNL_SUBSYS_NFTABLES || what == unix.NFT_MSG_NEWGEN:
		case !isOf(body, own):
			foreign = true
		case (what == unix.NFT_MSG_NEWTABLE || what == unix.NFT_MSG_DELTABLE) && isOf(body, own[:1]):
			*gone = what == unix.NFT_MSG_DELTABLE
		}
		messages = messages[min((size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(messages)):]
	}
	return foreign
}

// isOf reports whether an object is in one of some tables. The attribute with the table's name has the same number
// in tables, chains, rules, sets, elements, objects and flowtables (NFTA_TABLE_NAME to NFTA_FLOWTABLE_TABLE).
func isOf(object []byte, tables []string) bool {
	if len(object) < nl.SizeofNfgenmsg {
		return false
	}
	name := parseAttributes(object[nl.SizeofNfgenmsg:]).text(unix.NFTA_TABLE_NAME)
	return slices.Contains(tables, tableName(object[0], name))
}
