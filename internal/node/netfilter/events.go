// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"
	"math"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
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
	file, conn, err := netdev.Open(eventsBuffer, unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil
	}
	return &events{file, conn}, err
}

func (e *events) close() { e.file.Close() }

// largestEvents is more than the kernel puts into a message of several events (NLMSG_GOODSIZE).
const largestEvents = 1 << 16

// take gives all events that have arrived to a function. lost: the kernel has dropped some.
func (e *events) take(handle func(messages []byte)) (lost bool, err error) {
	failed := e.conn.Control(func(fd uintptr) { _, lost, err = receive(int(fd), math.MaxInt, handle) })
	return lost, errors.Join(failed, err)
}

// arm has the next wait wait. interrupt ends it.
func (e *events) arm() error { return e.file.SetReadDeadline(time.Time{}) }

func (e *events) interrupt() { _ = e.file.SetReadDeadline(time.Unix(1, 0)) }

// mostAtOnce is how many messages wait takes: its caller is to learn of the first of thousands at once.
const mostAtOnce = 8

// wait is like take, but waits until something arrives, unless it was interrupted after arm was called. It may leave
// some.
func (e *events) wait(handle func(messages []byte)) (lost bool, err error) {
	failed := e.conn.Read(func(fd uintptr) (done bool) {
		var some bool
		some, lost, err = receive(int(fd), mostAtOnce, handle)
		return some || lost || err != nil
	})
	if errors.Is(failed, os.ErrDeadlineExceeded) {
		failed = nil
	}
	return lost, errors.Join(failed, err)
}

// receive takes messages until there are no more, or as many as it may.
func receive(fd, most int, handle func(messages []byte)) (some, lost bool, err error) {
	buffer := make([]byte, largestEvents)
	for taken := 0; taken < most; taken++ {
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
	return some, lost, nil
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
	whole := eachEvent(messages, func(what uint8, _ uint16, body []byte) {
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

// destroyed are the kinds of events of what `nft destroy` has deleted (NFT_MSG_DESTROY*, Linux 6.3), with those of what
// `nft delete` has.
var destroyed = map[uint8]uint8{
	26: unix.NFT_MSG_DELTABLE, 27: unix.NFT_MSG_DELCHAIN, 28: unix.NFT_MSG_DELRULE, 29: unix.NFT_MSG_DELSET,
	30: unix.NFT_MSG_DELSETELEM, 31: unix.NFT_MSG_DELOBJ, 32: unix.NFT_MSG_DELFLOWTABLE,
}

// eachEvent calls a function with the kind (NFT_MSG_*), the flags and the content of each event of nf_tables. whole:
// all could be parsed.
func eachEvent(messages []byte, handle func(what uint8, flags uint16, body []byte)) (whole bool) {
	return eachMessage(messages, func(h unix.NlMsghdr, body []byte) {
		if h.Type>>8 == unix.NFNL_SUBSYS_NFTABLES {
			what := uint8(h.Type)
			if deleted, ok := destroyed[what]; ok {
				what = deleted
			}
			handle(what, h.Flags, body)
		}
	}) == nil
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
