// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// events is a socket to which the kernel sends what changes in nf_tables.
type events struct {
	file *os.File
	conn syscall.RawConn
}

// eventsBuffer is the size of the socket's receive buffer, in octets: events of a transaction with some 20,000 rules.
const eventsBuffer = 32 << 20

// newEvents returns nil if the kernel has no nfnetlink, and so no nf_tables.
func newEvents() (*events, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "nf_tables")
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil {
		// Without CAP_NET_ADMIN over the host the buffer stays small, and more events are lost.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, eventsBuffer)
		err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTABLES)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	conn, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, err
	}
	return &events{file, conn}, nil
}

func (e *events) close() { e.file.Close() }

// largestEvents is more than the kernel puts into a message of several events (NLMSG_GOODSIZE).
const largestEvents = 1 << 16

// take gives all events that have arrived to a function. lost: the kernel has dropped some.
func (e *events) take(handle func(messages []byte)) (lost bool, err error) {
	failed := e.conn.Control(func(fd uintptr) { _, lost, err = receive(int(fd), handle) })
	return lost, errors.Join(failed, err)
}

// wait is like take, but waits until something arrives or ctx ends.
func (e *events) wait(ctx context.Context, handle func(messages []byte)) (lost bool, err error) {
	if err := e.file.SetReadDeadline(time.Time{}); err != nil {
		return false, err
	}
	defer context.AfterFunc(ctx, func() { _ = e.file.SetReadDeadline(time.Now()) })()
	failed := e.conn.Read(func(fd uintptr) (done bool) {
		var some bool
		some, lost, err = receive(int(fd), handle)
		return some || lost || err != nil
	})
	return lost, errors.Join(ctx.Err(), failed, err)
}

// receive takes messages until there are no more.
func receive(fd int, handle func(messages []byte)) (some, lost bool, err error) {
	buffer := make([]byte, largestEvents)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, unix.MSG_TRUNC|unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return some, lost, nil
		case errors.Is(err, unix.ENOBUFS):
			lost = true
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return some, lost, err
		case n > len(buffer):
			lost = true
		default:
			some = true
			handle(buffer[:n])
		}
	}
}

// changed takes all events, and reports whether one is of a table that is not own, or the first own table is gone.
func (e *events) changed(own []string) (changed bool, err error) {
	gone := false
	lost, err := e.take(func(messages []byte) { changed = concerns(messages, own, &gone) || changed })
	return changed || gone || lost || err != nil, err
}

// concerns reports whether one of the messages is about a table that is not own. gone is whether the first own table
// was deleted and not created again.
func concerns(messages []byte, own []string, gone *bool) (foreign bool) {
	whole := eachEvent(messages, func(what uint8, body []byte) {
		switch {
		case what == unix.NFT_MSG_NEWGEN:
		case !isOf(body, own):
			foreign = true
		case (what == unix.NFT_MSG_NEWTABLE || what == unix.NFT_MSG_DELTABLE) && isOf(body, own[:1]):
			*gone = what == unix.NFT_MSG_DELTABLE
		}
	})
	return foreign || !whole
}

// eachEvent calls a function with the kind (NFT_MSG_*) and the content of each event of nf_tables. whole: all could be
// parsed.
func eachEvent(messages []byte, handle func(what uint8, body []byte)) (whole bool) {
	for len(messages) >= unix.SizeofNlMsghdr {
		size, kind := int(binary.NativeEndian.Uint32(messages)), binary.NativeEndian.Uint16(messages[4:])
		if size < unix.SizeofNlMsghdr || size > len(messages) {
			return false
		}
		if kind>>8 == unix.NFNL_SUBSYS_NFTABLES {
			handle(uint8(kind), messages[unix.SizeofNlMsghdr:size])
		}
		messages = messages[min((size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(messages)):]
	}
	return true
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
