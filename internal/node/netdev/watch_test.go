// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"context"
	"sync"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netns"
)

// Receive handles the message of a change before it, also beside Run, in order; and an empty one for those for which
// there was no room.
func TestWatcher(t *testing.T) {
	n, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := n.Do(func() error { return watch(t) }); err != nil {
		t.Fatal(err)
	}
}

func watch(t *testing.T) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	var mu sync.Mutex
	last, lost := 0, 0
	w, err := Subscribe(func(m syscall.NetlinkMessage) {
		mu.Lock()
		defer mu.Unlock()
		if m.Header.Type == 0 {
			lost++
			return
		}
		header := unix.NlMsghdr(m.Header)
		if l, err := netlink.LinkDeserialize(&header, m.Data); err != nil || l.Attrs().MTU < last {
			t.Errorf("MTU %d after %d, %v", l.Attrs().MTU, last, err)
		} else {
			last = l.Attrs().MTU
		}
	}, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return err
	}
	var loop sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	loop.Go(func() { w.Run(ctx) })
	defer loop.Wait()
	defer cancel()
	set := func(from, to int, after func()) error {
		for mtu := from; mtu < to; mtu++ {
			if err := netlink.LinkSetMTU(lo, mtu); err != nil {
				return err
			}
			after()
		}
		return nil
	}
	if err := set(1000, 1500, func() {
		w.Receive()
		mu.Lock()
		defer mu.Unlock()
		if mtu := last; mtu < 1000 {
			t.Errorf("the MTU %d", mtu)
		}
	}); err != nil {
		return err
	}
	if last != 1499 || lost != 0 {
		t.Errorf("the last MTU that was received is %d, %d times messages were lost", last, lost)
	}
	mu.Lock() // Run waits
	err = set(1500, 1500+receiveBuffer/1000, func() {})
	mu.Unlock()
	w.Receive()
	if err != nil || lost == 0 {
		t.Errorf("%d times messages were lost; %v", lost, err)
	}
	return nil
}
