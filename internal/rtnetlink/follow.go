// SPDX-License-Identifier: Apache-2.0

// Package rtnetlink says when the network of this namespace changes, and lists what is there.
package rtnetlink

import (
	"context"
	"fmt"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Follow leaves a note in changed when something of these groups (RTNLGRP_*,
// rtnetlink(7)) may have changed, and at its beginning, until ctx ends. Notes do not
// queue: whoever takes one reads anew what there is. When the kernel ends the
// subscription, as it does if messages come faster than they are read, Follow
// subscribes again. It fails if it cannot subscribe.
func Follow(ctx context.Context, changed chan<- struct{}, groups ...uint) error {
	for {
		if err := subscribe(ctx, changed, groups); err != nil {
			return fmt.Errorf("follow the network of this node: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// subscribe is one subscription, from beginning to end.
func subscribe(ctx context.Context, changed chan<- struct{}, groups []uint) error {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, groups...)
	if err != nil {
		return err
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, s.Close)
	defer stop()
	Notify(changed) // of what changed before
	for {
		messages, _, err := s.Receive()
		if err != nil || ctx.Err() != nil {
			return nil
		}
		if len(messages) > 0 {
			Notify(changed)
		}
	}
}

// Notify leaves a note; one is enough.
func Notify(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}
