// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net/netip"
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
		updates := make(chan netlink.AddrUpdate)
		if err := netlink.AddrSubscribe(updates, ctx.Done()); err != nil {
			return fmt.Errorf("subscribe: %w", err)
		}
		notify(changed) // of what changed before
		for range updates {
			notify(changed)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// notify leaves a note. One is enough: all addresses are read anew.
func notify(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}
