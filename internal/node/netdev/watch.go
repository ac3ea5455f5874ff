// SPDX-License-Identifier: Apache-2.0

// Package netdev reads the devices, addresses and sysctls of a network namespace, and watches these and routes for
// changes.
package netdev

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/util/wakeup"
)

// Watch sends a signal at the start, and whenever an object of these groups (RTNLGRP_*, rtnetlink(7)) may have
// changed, until ctx ends. If the subscription fails, as it does when messages arrive faster than they are
// read, Watch subscribes again. It returns an error if it cannot subscribe.
func Watch(ctx context.Context, changed wakeup.Signal, groups ...uint) error {
	return WatchFamily(ctx, changed, unix.NETLINK_ROUTE, groups...)
}

// WatchIn is Watch for the network namespace in which `in` runs a function.
func WatchIn(ctx context.Context, changed wakeup.Signal, in func(func() error) error, groups ...uint) error {
	return watch(ctx, changed, subscription{whose: "a pod", in: in, family: unix.NETLINK_ROUTE, concerns: anything, groups: groups})
}

// WatchFamily is Watch for the groups of a netlink family (netlink(7)).
func WatchFamily(ctx context.Context, changed wakeup.Signal, family int, groups ...uint) error {
	return watch(ctx, changed, subscription{whose: "this node", in: here, family: family, concerns: anything, groups: groups})
}

// WatchSome is Watch for the messages for which a function returns true.
func WatchSome(ctx context.Context, changed wakeup.Signal, concerns func(syscall.NetlinkMessage) bool, groups ...uint) error {
	return watch(ctx, changed, subscription{whose: "this node", in: here, family: unix.NETLINK_ROUTE, concerns: concerns, groups: groups})
}

// A subscription says of which messages a signal is sent. `in` runs a function in their network namespace.
type subscription struct {
	whose    string // for errors
	in       func(func() error) error
	family   int
	concerns func(syscall.NetlinkMessage) bool
	groups   []uint
}

func here(f func() error) error { return f() }

func anything(syscall.NetlinkMessage) bool { return true }

func watch(ctx context.Context, changed wakeup.Signal, to subscription) error {
	for {
		if err := subscribe(ctx, changed, to); err != nil {
			return fmt.Errorf("watch the network of %s: %w", to.whose, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// subscribe runs one subscription until it ends.
func subscribe(ctx context.Context, changed wakeup.Signal, to subscription) error {
	var s *nl.NetlinkSocket
	err := to.in(func() (err error) {
		s, err = nl.Subscribe(to.family, to.groups...)
		return err
	})
	if err != nil {
		return err
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, s.Close)
	defer stop()
	changed.Send() // for changes before the subscription
	for {
		messages, _, err := s.Receive()
		if err != nil || ctx.Err() != nil {
			return nil
		}
		if slices.ContainsFunc(messages, to.concerns) {
			changed.Send()
		}
	}
}
