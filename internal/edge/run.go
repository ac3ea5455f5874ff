// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/rtnetlink"
)

// Changes of devices may go on for so long until they are looked at; and longer
// where a look takes long, since there are a million routes.
const (
	settle    = 50 * time.Millisecond
	lookShare = 20 // looks take at most a part in so many of the time
)

// retryInterval is when devices that could not be served are tried again.
const retryInterval = 30 * time.Second

// Run follows devices and ends flows until ctx ends. What is attached stays.
func (e *Edge) Run(ctx context.Context) error {
	if e == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		failed <- rtnetlink.Follow(ctx, e.changed, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
			unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	}()
	var loops sync.WaitGroup
	loops.Go(func() { e.followDevices(ctx) })
	loops.Go(func() { e.endFlows(ctx) })
	err := <-failed
	cancel()
	loops.Wait()
	return err
}

func (e *Edge) followDevices(ctx context.Context) {
	retry := time.NewTicker(retryInterval)
	defer retry.Stop()
	took := time.Duration(0) // the last look at the devices
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.changed:
			if !sleep(ctx, max(settle, lookShare*took)) {
				return
			}
			begin := time.Now()
			e.lookAgain()
			took = time.Since(begin)
		case <-retry.C:
			if e.failing() {
				e.lookAgain()
			}
		}
	}
}

// endFlows ends those whose backend has left at once, and the others when their
// time has come.
func (e *Edge) endFlows(ctx context.Context) {
	e.countShortage()
	sweep := time.NewTimer(sweepInterval)
	defer sweep.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.left:
			e.endLeft()
		case <-e.began: // nothing is left alone at the door before the first sweep
			sweep.Reset(e.sweep())
		case <-sweep.C:
			sweep.Reset(e.sweep())
			e.countShortage()
		}
	}
}

// sleep says whether it slept so long.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func (e *Edge) lookAgain() {
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
	return len(e.problems) > 0
}
