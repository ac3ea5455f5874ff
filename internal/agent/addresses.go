// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
)

// localAddresses are the addresses of this node's interfaces that others can
// reach: neither loopback nor link-local.
func localAddresses() ([]netip.Addr, error) {
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var all []netip.Addr
	for _, a := range list {
		addr, ok := netip.AddrFromSlice(a.IP)
		addr = addr.Unmap()
		if !ok || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() {
			continue
		}
		all = append(all, addr)
	}
	return all, nil
}

// followAddresses says when an address came or went, until ctx ends. When the
// kernel ends the subscription, as it does if notes come faster than they are
// read, it subscribes again.
func followAddresses(ctx context.Context, changed chan<- struct{}) error {
	for {
		if err := subscribe(ctx, changed); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// subscribe is one subscription, from beginning to end.
func subscribe(ctx context.Context, changed chan<- struct{}) error {
	updates, done := make(chan netlink.AddrUpdate), make(chan struct{})
	if err := netlink.AddrSubscribe(updates, done); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	ended := sync.OnceFunc(func() { close(done) }) // closes the socket, too
	defer ended()
	stop := context.AfterFunc(ctx, ended)
	defer stop()
	notify(changed) // of what changed before
	for range updates {
		notify(changed)
	}
	return nil
}

// notify leaves a note. One is enough: all addresses are read anew.
func notify(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}
