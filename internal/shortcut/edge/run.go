// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"sync"
	"time"

	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/util/wakeup"
)

// The devices are read settleTime after a change, so that several changes need only one read; later if a
// read takes long, as with a million routes.
const (
	settleTime  = 50 * time.Millisecond
	rescanShare = 20 // reads take at most 1/rescanShare of the time
)

// retryInterval is when devices that could not be served are retried, and sysctls that were off are read
// again: the kernel does not notify of their changes.
const retryInterval = 30 * time.Second

// lossInterval is how often the counts of lost packets are read, those of drivers and the edge's own.
const lossInterval = 10 * time.Second

// Run follows the devices until ctx ends. The programs stay attached.
func (e *Edge) Run(ctx context.Context) error {
	policies := wakeup.NewSignal()
	e.config.Network.Notify(e.changed, node.Devices|node.Addresses|node.Routes|node.RPFilters)
	e.config.Network.Notify(policies, node.XFRM)
	e.countAll(time.Now())
	var loops sync.WaitGroup
	loops.Go(func() { e.followPolicies(ctx, policies) })
	for _, loop := range []func(context.Context){e.followDevices, e.followRouting, e.followFilters, e.followDrops} {
		loops.Go(func() { loop(ctx) })
	}
	loops.Wait()
	return nil
}

func (e *Edge) followDevices(ctx context.Context) {
	retry := time.NewTicker(retryInterval)
	defer retry.Stop()
	losses := time.NewTicker(lossInterval)
	defer losses.Stop()
	took := time.Duration(0) // by the last read of the devices
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.changed:
			if !wakeup.Sleep(ctx, max(settleTime, rescanShare*took)) {
				return
			}
			begin := time.Now()
			e.rescan()
			took = time.Since(begin)
		case now := <-losses.C:
			e.countAll(now)
		case <-retry.C:
			if e.failing() {
				e.rescan()
			}
		}
	}
}

// countAll reads the counters whose growth is a condition.
func (e *Edge) countAll(now time.Time) {
	counters, err := e.config.Counters() // status reads them, too, and reports the error
	e.mu.Lock()
	defer e.mu.Unlock()
	e.countLosses(now)
	if err == nil {
		e.withheldDrops.Note(counters[droppedForXFRM], now)
		e.noteForwardingDrops(counters[droppedForForwarding], now)
	}
}

func (e *Edge) rescan() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ready {
		e.reconcile(false)
	}
}

func (e *Edge) failing() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.devices {
		if a.failed != nil || a.entry.retry {
			return true
		}
	}
	return len(e.problems) > 0 || len(e.forwarding) > 0
}
