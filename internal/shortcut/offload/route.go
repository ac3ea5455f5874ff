// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/node/flow"
)

// routes tells the MTU of routes. The programs look up all else of a route themselves.
type routes struct {
	mu    sync.Mutex
	known map[routeKey]uint16
}

type routeKey struct {
	destination netip.Addr
	in, out     int
}

// routesMost bounds the routes that are remembered.
const routesMost = 4096

func newRoutes() *routes { return &routes{known: map[routeKey]uint16{}} }

// forget is called when routes have changed.
func (r *routes) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.known)
}

// mtu returns the MTU of the route of a flow's packets: what the route sets, 0 if that is nothing. `always`: else the
// MTU of the device, less what the route adds to packets.
func (r *routes) mtu(f *flow.Flow, always bool) (uint16, error) {
	key := routeKey{f.Out.Destination.Addr(), f.InDevice, f.OutDevice}
	r.mu.Lock()
	defer r.mu.Unlock()
	mtu, known := r.known[key]
	if !known {
		list, err := netlink.RouteGetWithOptions(f.Out.Destination.Addr().AsSlice(), &netlink.RouteGetOptions{
			SrcAddr: f.In.Source.Addr().AsSlice(), IifIndex: f.InDevice,
		})
		if err != nil || len(list) == 0 {
			return 0, fmt.Errorf("the kernel has no route for it: %v", err)
		}
		mtu = uint16(list[0].MTU)
		if len(r.known) >= routesMost {
			clear(r.known)
		}
		r.known[key] = mtu
	}
	if mtu != 0 || !always {
		return mtu, nil
	}
	device, err := net.InterfaceByIndex(f.OutDevice)
	if err != nil {
		return 0, fmt.Errorf("its output device: %w", err)
	}
	return uint16(min(device.MTU, 0xffff)), nil
}

// watchRoutes calls changed when routes change, at most once per routeInterval; `mtu`: one of them sets an MTU.
func watchRoutes(ctx context.Context, changed func(mtu bool)) error {
	updates := make(chan netlink.RouteUpdate, 1024)
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { close(done) })
	defer stop()
	failed := make(chan error, 1)
	if err := netlink.RouteSubscribeWithOptions(updates, done, netlink.RouteSubscribeOptions{
		ErrorCallback: func(err error) {
			select {
			case failed <- err:
			default:
			}
		},
	}); err != nil {
		return fmt.Errorf("watch the routes: %w", err)
	}
	var timer <-chan time.Time
	mtu := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case u, open := <-updates:
			if !open {
				if ctx.Err() != nil {
					return nil
				}
				select {
				case err := <-failed:
					return fmt.Errorf("watch the routes: %w", err)
				default:
					return fmt.Errorf("watch the routes: the kernel has closed the socket")
				}
			}
			mtu = mtu || u.MTU != 0
			if timer == nil {
				timer = time.After(routeInterval)
			}
		case <-timer:
			timer = nil
			changed(mtu)
			mtu = false
		}
	}
}

const routeInterval = 200 * time.Millisecond
