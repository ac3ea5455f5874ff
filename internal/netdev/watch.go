// SPDX-License-Identifier: Apache-2.0

// Package netdev reads the devices, addresses, routes and sysctls of a network namespace, and watches them for changes.
package netdev

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/wakeup"
)

// Watch sends a signal at the start, and whenever an object of these groups (RTNLGRP_*, rtnetlink(7)) may have
// changed, until ctx ends. If the subscription fails, as it does when messages arrive faster than they are
// read, Watch subscribes again. It returns an error if it cannot subscribe.
func Watch(ctx context.Context, changed wakeup.Signal, groups ...uint) error {
	return WatchFamily(ctx, changed, unix.NETLINK_ROUTE, groups...)
}

// WatchFamily is Watch for the groups of a netlink family (netlink(7)).
func WatchFamily(ctx context.Context, changed wakeup.Signal, family int, groups ...uint) error {
	return watch(ctx, changed, family, func(syscall.NetlinkMessage) bool { return true }, groups)
}

// WatchSome is Watch for the messages for which a function returns true.
func WatchSome(ctx context.Context, changed wakeup.Signal, concerns func(syscall.NetlinkMessage) bool, groups ...uint) error {
	return watch(ctx, changed, unix.NETLINK_ROUTE, concerns, groups)
}

func watch(ctx context.Context, changed wakeup.Signal, family int, concerns func(syscall.NetlinkMessage) bool, groups []uint) error {
	for {
		if err := subscribe(ctx, changed, family, concerns, groups); err != nil {
			return fmt.Errorf("watch the network of this node: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// subscribe runs one subscription until it ends.
func subscribe(ctx context.Context, changed wakeup.Signal, family int, concerns func(syscall.NetlinkMessage) bool, groups []uint) error {
	s, err := nl.Subscribe(family, groups...)
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
		if slices.ContainsFunc(messages, concerns) {
			changed.Send()
		}
	}
}
