// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	gosync "sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/probe"
	"beeline.io/beeline/internal/rtnetlink"
	"beeline.io/beeline/internal/source"
)

// serve runs what goes on side by side until ctx ends or one of it fails.
func (a *Agent) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	listener, err := listen(a.config.Socket)
	if err != nil && !datapath.Attached(a.config.BPFFS) {
		return a.giveUp(err)
	}
	if err != nil {
		return err
	}
	events, health := make(chan source.Event), make(chan []probe.Change)
	addresses := make(chan struct{}, 1)
	var group gosync.WaitGroup
	failed := make(chan error, 7)
	run := func(what string, f func() error) {
		group.Go(func() {
			if err := f(); err != nil && ctx.Err() == nil {
				failed <- fmt.Errorf("%s: %w", what, err)
				cancel()
			}
		})
	}
	run("socket", func() error { return a.answer(ctx, listener) })
	run("source", func() error { return a.objects.Run(ctx, events) })
	run("sockets of backends that are gone", func() error { return a.sockets.Run(ctx) })
	run("health checks", func() error { return a.prober.Run(ctx, health) })
	run("edge", func() error { return a.edge.Run(ctx) })
	run("pods", func() error { return a.pods.Run(ctx) })
	run("addresses of the node", func() error {
		return rtnetlink.Follow(ctx, addresses, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	})
	err = a.loop(ctx, events, health, addresses)
	cancel()
	wait(&group)
	if err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	default:
		a.tellManager(daemon.SdNotifyStopping)
		a.log.Info("stopping; what is attached stays attached and serves on")
		return nil
	}
}

// stopTime is long for what takes milliseconds: a busy machine may stand still for seconds, and what
// still runs must not find the tables closed.
const stopTime = 10 * time.Second

// wait waits for what goes on beside the loop, but not for ever: not for a file system that
// does not answer.
func wait(group *gosync.WaitGroup) {
	ended := make(chan struct{})
	go func() {
		group.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(stopTime):
	}
}

// collectInterval is how long what an update gave back waits for its grace
// period, so that many updates share one.
const collectInterval = time.Second

// loop is the only place from which the plan and the tables change; only what is given
// back goes on beside it.
func (a *Agent) loop(ctx context.Context, events <-chan source.Event, health <-chan []probe.Change, addresses <-chan struct{}) error {
	collect := time.NewTicker(collectInterval)
	defer collect.Stop()
	collecting, collected := false, make(chan error, 1)
	defer func() {
		if collecting {
			<-collected // before the tables are closed
		}
	}()
	retry := time.NewTimer(0)
	defer retry.Stop()
	var audit <-chan time.Time
	if a.config.AuditInterval > 0 {
		ticker := time.NewTicker(a.config.AuditInterval)
		defer ticker.Stop()
		audit = ticker.C
	}
	mend := time.NewTicker(mendInterval)
	defer mend.Stop()
	a.updateAddresses()
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev := <-events:
			if err := a.take(ev); err != nil {
				return err
			}
			retry.Reset(0)
		case changes := <-health:
			a.takeHealth(changes)
			retry.Reset(0)
		case <-addresses:
			a.updateAddresses()
			retry.Reset(0)
		case now := <-retry.C:
			next, err := a.syncer.Retry(now)
			a.lookAfterSockets()
			if err != nil {
				a.log.Error("still not in the tables", "error", err, "retry", time.Until(next).Round(time.Millisecond))
			}
			if !next.IsZero() {
				retry.Reset(time.Until(next))
			}
		case <-collect.C:
			if !collecting {
				collecting = true
				go func() { // so that no change waits for the grace period
					_, err := a.syncer.Collect()
					collected <- err
				}()
			}
		case err := <-collected:
			collecting = false
			if err != nil {
				a.log.Error("could not give table space back; trying again", "error", err)
			}
			retry.Reset(0)
		case <-mend.C:
			a.mend()
		case <-audit:
			a.audit()
			retry.Reset(0)
		}
	}
}

// audit mends the tables, and what was taken from under the agent: pins and
// links.
func (a *Agent) audit() {
	a.mend()
	if a.synced {
		for _, what := range a.edge.Mend() { // also what no look at links shows
			a.log.Error("mended what somebody else has taken away", "what", what)
		}
	}
	repairs, err := a.syncer.Audit()
	if repairs > 0 {
		a.changed(true, true) // nobody knows what the tables said meanwhile
		a.log.Warn("the tables were not what they should be, and were mended: does another program write to them?", "differences", repairs)
	}
	if err != nil {
		a.log.Error("comparing the tables failed", "error", err)
	}
	a.auditOptOuts()
}
