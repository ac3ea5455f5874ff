// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
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
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 3)
	go func() {
		failed <- netdev.Watch(ctx, e.changed, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
			unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_NETCONF)
	}()
	go func() { failed <- e.watchPolicies(ctx) }()
	go func() { failed <- e.followRouting(ctx) }()
	e.countAll(time.Now())
	var loops sync.WaitGroup
	loops.Go(func() { e.followDevices(ctx) })
	loops.Go(func() { e.followFilters(ctx) })
	loops.Go(func() { e.followDrops(ctx) })
	err := <-failed
	cancel()
	<-failed
	<-failed
	loops.Wait()
	return err
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
			if !sleep(ctx, max(settleTime, rescanShare*took)) {
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

// sleep sleeps for d, and returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
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
