// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/util/wakeup"
)

const (
	// settle is how long Run waits for further changes before it replaces the table.
	settle = 50 * time.Millisecond
	// pause is the least time between two replacements: flows have to leave the stack meanwhile.
	pause = 400 * time.Millisecond
	// confirmInterval is how often next hops are confirmed that only flows in the flowtable use.
	confirmInterval = 5 * time.Second
	// retryInterval is when a failed replacement is repeated.
	retryInterval = time.Second
)

// groups are the groups of rtnetlink that Run follows.
var groups = []uint{
	unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
}

// Run follows the network until ctx ends. The table stays: Close removes it.
func (f *Flowtable) Run(ctx context.Context) error {
	var watcher *netdev.Watcher
	err := f.do(func() (err error) {
		watcher, err = netdev.Subscribe(f.message, unix.NETLINK_ROUTE, groups...)
		return err
	})
	if err != nil {
		return fmt.Errorf("watch the network for the flowtable: %w", err)
	}
	f.mu.Lock()
	f.setDue("start") // for changes before the subscription
	f.mu.Unlock()
	var loop sync.WaitGroup
	loop.Go(func() { f.replaceWhenDue(ctx) })
	watcher.Run(ctx)
	loop.Wait()
	return nil
}

func (f *Flowtable) setDue(reason string) {
	if f.config != nil && f.due == "" {
		f.due = reason
		f.wake.Send()
	}
}

// replaceWhenDue replaces the table some time after due is set, and confirms next hops.
func (f *Flowtable) replaceWhenDue(ctx context.Context) {
	confirm := time.NewTicker(confirmInterval)
	defer confirm.Stop()
	for {
		wait := time.Duration(0)
		select {
		case <-ctx.Done():
			return
		case <-confirm.C:
			f.confirm()
			continue
		case <-f.wake:
			wait = settle
		}
		for wait > 0 {
			if !wakeup.Sleep(ctx, wait) {
				return
			}
			wait = f.replaceDue()
		}
	}
}

// replaceDue replaces the table if that is due, and returns when to call it again; 0: need not.
func (f *Flowtable) replaceDue() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.due == "" {
		return 0
	}
	if since := time.Since(f.status.last); since < pause {
		return pause - since
	}
	if err := f.replace(f.due); err != nil {
		f.log.Error("flows cannot return to the stack; trying again", "error", err)
		return retryInterval
	}
	return 0
}

// message follows one message of rtnetlink.
func (f *Flowtable) message(m syscall.NetlinkMessage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.config == nil {
		return
	}
	c := f.changeBy(m)
	if c.all != "" {
		f.setDue(c.all)
		return
	}
	if err := f.follows(c); err != nil {
		f.log.Warn("the flowtable's next hops", "error", err)
		f.setDue("next hops")
	}
}

func (f *Flowtable) changeBy(m syscall.NetlinkMessage) (c change) {
	kind := m.Header.Type
	switch kind {
	case 0:
		c.all = "messages of the network were lost"
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		if neigh, err := netlink.NeighDeserialize(m.Data); err == nil {
			return f.network.neighbour(kind, neigh)
		}
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if m.Data[0] == unix.AF_BRIDGE {
			break // the state of a port; it lacks attributes of the device
		}
		header := unix.NlMsghdr(m.Header)
		if l, err := netlink.LinkDeserialize(&header, m.Data); err == nil {
			return f.network.link(kind, l, f.matters)
		}
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		if routeMatters(m) {
			c.all = "a route"
		}
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		c.all = "a routing rule"
	}
	return c
}

// routeMatters reports whether forwarded packets can take the route of a message: those to groups and to link-local
// addresses, which come and go with any device, they cannot.
func routeMatters(m syscall.NetlinkMessage) bool {
	r, err := node.RouteOf(m)
	to := r.To.Addr()
	return err != nil || to.IsValid() && !to.IsMulticast() && !(to.Is6() && to.IsLinkLocalUnicast())
}

// matters reports whether flows use a device: those of the configuration and those above, and ports of these.
func (f *Flowtable) matters(d netdev.Device) bool {
	return f.devices[d.Index] || f.devices[d.Master] || slices.Contains(f.config.Devices, d.Name)
}
