// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/flow"
	"beeline.io/beeline/internal/util/wakeup"
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

// followRoutes has the flow cache follow changes of routes, at most once per routeInterval, until ctx ends.
func (o *Offload) followRoutes(ctx context.Context) error {
	changed, mtu := wakeup.NewSignal(), atomic.Bool{} // mtu: one of the changed routes sets an MTU
	o.config.Network.NotifyIf(changed, node.Routes, func(m syscall.NetlinkMessage) bool {
		if r, err := node.RouteOf(m); err != nil || r.MTU != 0 {
			mtu.Store(true)
		}
		return true
	})
	for changed.Wait(ctx) && wakeup.Sleep(ctx, routeInterval) {
		o.note("routes", o.flows.RoutesChanged(mtu.Swap(false) || o.rules.readRoutes()))
	}
	return nil
}

const routeInterval = 200 * time.Millisecond
