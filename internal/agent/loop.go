// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	gosync "sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/source"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/part/healthcheck"
	"beeline.io/beeline/internal/util/wakeup"
)

// serve runs the agent's goroutines until ctx ends or one of them fails.
func (a *Agent) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	listener, err := listen(a.config.Socket, a.config.BPFFS)
	if err != nil && !bpf.Attached(a.config.BPFFS) {
		return a.rollback(err)
	}
	if err != nil {
		return err
	}
	events, health := make(chan source.Event), make(chan []healthcheck.Change)
	addresses := wakeup.NewSignal()
	a.network.Notify(addresses, node.Addresses)
	var group gosync.WaitGroup
	tasks := append(a.components.Tasks(),
		component.Task{Name: "socket", Run: func(ctx context.Context) error { return a.serveSocket(ctx, listener) }},
		component.Task{Name: "source", Run: func(ctx context.Context) error { return a.source.Run(ctx, events) }},
		component.Task{Name: "health checks", Run: func(ctx context.Context) error { return a.prober.Run(ctx, health) }},
		component.Task{Name: "network", Run: a.network.Run})
	failed := make(chan error, len(tasks))
	for _, task := range tasks {
		group.Go(func() {
			if err := task.Run(ctx); err != nil && ctx.Err() == nil {
				failed <- fmt.Errorf("%s: %w", task.Name, err)
				cancel()
			}
		})
	}
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
		a.sdNotify(daemon.SdNotifyStopping)
		a.log.Info("stopping; the attached programs keep serving")
		return nil
	}
}

// stopTime is long for work of milliseconds, because a busy machine may stall for seconds, and goroutines that
// still run must not use closed tables.
const stopTime = 10 * time.Second

// wait waits for the goroutines beside the loop, but at most stopTime, because a file system may not respond.
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

// collectInterval is how long freed table space waits for its grace period, so that many updates share one.
const collectInterval = time.Second

// nodeSocketsInterval is how often sockets of the node are looked for that serve a Service's address: the kernel does
// not report sockets that are bound.
const nodeSocketsInterval = time.Second

// loop is the only goroutine that changes the plan and the tables, except for garbage collection, which runs
// beside it.
func (a *Agent) loop(ctx context.Context, events <-chan source.Event, health <-chan []healthcheck.Change, addresses <-chan struct{}) error {
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
	repair := time.NewTicker(repairInterval)
	defer repair.Stop()
	nodeSockets := time.NewTicker(nodeSocketsInterval)
	defer nodeSockets.Stop()
	a.updateAddresses()
	a.updateNodeSockets()
	for {
		a.health.Beat() // at least once a second, because of the tickers
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
		case <-nodeSockets.C:
			if a.updateNodeSockets() {
				retry.Reset(0)
			}
		case now := <-retry.C:
			next, err := a.syncer.Retry(now)
			a.noteRemoved()
			a.components.Written()
			if err != nil {
				a.log.Error("still not in the tables", "error", err, "retry", time.Until(next).Round(time.Millisecond))
			}
			if !next.IsZero() {
				retry.Reset(time.Until(next))
			}
		case <-collect.C:
			if !collecting {
				collecting = true
				go func() { // beside the loop, so that no change waits for the grace period
					_, err := a.syncer.CollectGarbage()
					collected <- err
				}()
			}
		case err := <-collected:
			collecting = false
			if err != nil {
				a.log.Error("cannot free table space; retrying", "error", err)
			}
			retry.Reset(0)
		case <-repair.C:
			a.repair()
		case <-audit:
			a.audit()
			retry.Reset(0)
		}
	}
}

// audit repairs the tables, pins, links, and the components' own state.
func (a *Agent) audit() {
	a.repair()
	a.network.Forget()
	if a.synced {
		repaired, err := a.components.Audit()
		a.logRepaired(repaired)
		if err != nil {
			a.log.Error("the audit of a component failed", "error", err)
		}
	}
	begin := time.Now()
	repairs, err := a.syncer.Audit()
	if a.synced {
		a.metrics.Proxy.Synced(begin, true)
	}
	a.components.Written()
	if repairs > 0 {
		a.components.BackendsRemoved(true, true) // the tables may have been wrong for a while
		a.log.Warn("the tables differed from the expected state and were repaired: does another program write to them?", "differences", repairs)
	}
	if err != nil {
		a.log.Error("the audit of the tables failed", "error", err)
	}
}
