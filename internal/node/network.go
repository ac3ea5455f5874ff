// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"reflect"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/util/wakeup"
)

// A Network is one network namespace as its kernel describes it. It dumps each table at most once after a change, for
// all that read it; readers do not change what they get. All methods may be called from any goroutine.
//
// A table is never older than the call that reads it: the kernel queues the message of a change before the system call
// of the change returns, and a reader first takes what is queued.
//
// The zero value dumps at each call, in the network namespace of the calling thread.
type Network struct {
	routing, policies *netdev.Watcher // nil: none

	mu      sync.Mutex // not held during a dump
	states  [tables]state
	wakeups []notification

	devices    cached[[]netdev.Device]
	addresses  cached[[]netdev.Address]
	routes     cached[[]Route]
	rules      cached[[]Rule]
	neighbours cached[[]Neighbour]
	forwarding cached[map[BridgeMAC]int]
	rpFilters  cached[map[int]uint8]
	queues     cached[[]netlink.Qdisc]
	xfrm       cached[[]XFRMPolicy]
}

// A Table is a set of tables of a Network.
type Table uint

const (
	Devices Table = 1 << iota
	Addresses
	Routes
	Rules
	Neighbours
	ForwardingEntries // of bridges
	RPFilters
	Queues // and filters of tc
	XFRM   // policies

	tables    = iota
	ofRouting = XFRM - 1 // those whose messages are of rtnetlink
)

// A state is when a table last changed.
type state struct {
	version uint64
	// settled is when all is done that follows from a message without a message of its own: a device takes its
	// routes along, for example.
	settled time.Time
}

// settleTime is long for what the kernel does after a message under one lock.
const settleTime = 10 * time.Millisecond

// A notification is whom a change of tables wakes.
type notification struct {
	tables   Table
	concerns func(syscall.NetlinkMessage) bool
	signal   wakeup.Signal
}

// Follow returns the network namespace of the calling thread. Run sends the signals of Notify.
func Follow() (n *Network, err error) {
	n = &Network{}
	for i := range n.states {
		n.states[i].version = 1
	}
	n.policies, err = netdev.Subscribe(func(m syscall.NetlinkMessage) {
		if m.Header.Type != nl.XFRM_MSG_EXPIRE { // of a state
			n.note(m, XFRM, 0)
		}
	}, unix.NETLINK_XFRM, nl.XFRMNLGRP_POLICY, nl.XFRMNLGRP_EXPIRE)
	if err == nil || errors.Is(err, unix.EPROTONOSUPPORT) { // a kernel without XFRM
		n.routing, err = netdev.Subscribe(n.noteRouting, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_NEXTHOP,
			unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_TC)
	}
	if err != nil {
		return nil, fmt.Errorf("watch the network of this node: %w", err)
	}
	return n, nil
}

// tablesOf returns the tables that a message is about, and those that may change after it without one of their own.
func tablesOf(m *syscall.NetlinkMessage) (changed, after Table) {
	switch m.Header.Type {
	case 0: // messages were lost
		return ofRouting, 0
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return Devices, Routes | RPFilters | Queues
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return Addresses, Routes
	case unix.RTM_NEWROUTE:
		return Routes, 0
	case unix.RTM_DELROUTE, unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP: // IPv4 deletes a route after the message
		return Routes, Routes
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return Rules, 0
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		if len(m.Data) > 0 && m.Data[0] == unix.AF_BRIDGE {
			return ForwardingEntries, 0
		}
		return Neighbours, 0
	case unix.RTM_NEWNETCONF, unix.RTM_DELNETCONF:
		return RPFilters, 0
	}
	return Queues, 0
}

func (n *Network) noteRouting(m syscall.NetlinkMessage) {
	changed, after := tablesOf(&m)
	n.note(m, changed, after)
}

func (n *Network) note(m syscall.NetlinkMessage, changed, after Table) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range n.states {
		if after>>i&1 != 0 {
			n.states[i].settled = time.Now().Add(settleTime)
		}
	}
	n.outdate(changed | after)
	for _, to := range n.wakeups {
		if to.tables&changed != 0 && to.concerns(m) {
			to.signal.Send()
		}
	}
}

// outdate has tables dumped anew. The caller holds the lock.
func (n *Network) outdate(of Table) {
	for i := range n.states {
		if of>>i&1 != 0 {
			n.states[i].version++
		}
	}
}

// Run sends signals until ctx ends.
func (n *Network) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	for _, w := range []*netdev.Watcher{n.routing, n.policies} {
		if w != nil {
			loops.Go(func() { w.Run(ctx) })
		}
	}
	loops.Wait()
	return nil
}

// Notify sends a signal now and whenever one of some tables may have changed.
func (n *Network) Notify(signal wakeup.Signal, of Table) {
	n.NotifyIf(signal, of, func(syscall.NetlinkMessage) bool { return true })
}

// NotifyIf is Notify for the messages for which a function returns true. An empty message means that some were lost.
// The function must not call the Network.
func (n *Network) NotifyIf(signal wakeup.Signal, of Table, concerns func(syscall.NetlinkMessage) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wakeups = append(n.wakeups, notification{of, concerns, signal})
	signal.Send()
}

// Forget has all tables dumped anew: for changes that the kernel does not announce.
func (n *Network) Forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.outdate(1<<tables - 1)
}

// A cached table is the last dump. The zero value is none.
type cached[T any] struct {
	mu      sync.Mutex // held during a dump
	version uint64
	value   T
}

// Tables of more than mostKept entries, such as the routes of the Internet, are kept for keepTime only.
const (
	mostKept = 1 << 15
	keepTime = time.Second
)

// read returns a table as it is now.
func read[T any](n *Network, of Table, t *cached[T], dump func() (T, error)) (T, error) {
	w := n.routing
	if of == XFRM {
		w = n.policies
	}
	if w == nil {
		return dump()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	w.Receive()
	now := n.stateOf(of)
	if t.version == now.version {
		return t.value, nil
	}
	early := time.Now().Before(now.settled)
	value, err := dump()
	t.version = 0
	if err == nil && !early {
		t.version, t.value = now.version, value
	}
	if reflect.ValueOf(value).Len() > mostKept {
		time.AfterFunc(keepTime, t.forget)
	}
	return value, err
}

func (t *cached[T]) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	var none T
	t.version, t.value = 0, none
}

func (n *Network) stateOf(of Table) state {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.states[bits.TrailingZeros(uint(of))]
}

// Devices returns the devices.
func (n *Network) Devices() ([]netdev.Device, error) {
	return read(n, Devices, &n.devices, netdev.Devices)
}

// Addresses returns the addresses of all devices in the kernel's order of preference.
func (n *Network) Addresses() ([]netdev.Address, error) {
	return read(n, Addresses, &n.addresses, netdev.Addresses)
}

// Queues returns the qdiscs of all devices.
func (n *Network) Queues() ([]netlink.Qdisc, error) {
	return read(n, Queues, &n.queues, func() ([]netlink.Qdisc, error) {
		all, err := netdev.Dump(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(nil) })
		if err != nil {
			return nil, fmt.Errorf("list qdiscs: %w", err)
		}
		return all, nil
	})
}
