// SPDX-License-Identifier: Apache-2.0

// Package agent is the one program that runs on a node: it takes objects from
// a source, lets package service decide, and keeps the datapath's tables in
// agreement. It owns no traffic: what it attached goes on without it.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	gosync "sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/edge"
	"beeline.io/beeline/internal/observe"
	"beeline.io/beeline/internal/pods"
	"beeline.io/beeline/internal/probe"
	"beeline.io/beeline/internal/rtnetlink"
	"beeline.io/beeline/internal/service"
	"beeline.io/beeline/internal/source"
	"beeline.io/beeline/internal/sync"
	"beeline.io/beeline/internal/terminate"
)

// Agent is a running agent.
type Agent struct {
	config  Config
	log     *slog.Logger
	version string
	started time.Time

	objects  source.Source
	datapath *datapath.Datapath
	syncer   *sync.Syncer
	table    *service.Table
	optOuts  *service.OptOuts
	pods     *pods.Tracker
	sockets  *terminate.Job
	edge     *edge.Edge // nil: off
	prober   *probe.Prober

	synced bool // the complete state is in the tables and attached; only loop looks

	mu          gosync.Mutex
	source      observe.Source // what the socket's requests see of the source
	unknownNode bool
	// optOutProblems are those of objects that ask for no socket shortcut.
	optOutProblems []service.OptOutProblem
	// checked are the endpoints with health checks.
	checked map[service.Ref][]service.Checked
}

// garbagePercent is how much garbage may lie beside what is in use: memory of a
// node is dearer than the little time that the collector takes.
const garbagePercent = 25

// freeAfter is when what the first reading took goes back to the system. What it left in
// pools goes with the second collection, and on a busy machine it takes a while until all
// is done that follows.
var freeAfter = []time.Duration{time.Second, 5 * time.Second, 20 * time.Second}

// Run runs an agent until ctx ends. It leaves everything attached.
//
// On a node where nothing is attached yet it fails if the manifests are bad,
// and leaves the node as it found it, and waits for an API server before it attaches
// anything. Where an earlier agent's programs serve, it reports what is bad and
// serves on with what is there.
func Run(ctx context.Context, config Config, version string, log *slog.Logger) error {
	a := &Agent{config: config, log: log, version: version, started: time.Now()}
	var err error
	if a.objects, a.source, err = newSource(config, version, log); err != nil {
		return err
	}
	loaded := a.loadManifests()
	a.table = service.NewTable(config.Service)
	a.optOuts = service.NewOptOuts(config.NodeName)
	a.prober = a.newProber()

	a.datapath, err = datapath.Open(datapath.Options{
		BPFFS: config.BPFFS, CgroupRoot: config.CgroupRoot, Limits: config.Limits,
		BindProtection: config.BindProtection, Edge: config.edgeOptions(),
	})
	bad := <-loaded
	if err != nil {
		return errors.Join(bad, err)
	}
	defer a.datapath.Close()
	if bad != nil && !datapath.Attached(config.BPFFS) {
		return a.giveUp(bad)
	}
	if bad != nil {
		log.Error("the manifests cannot be used; what an earlier agent left serves on")
	}
	if a.datapath.Unprotected != "" {
		log.Error(a.datapath.Unprotected)
	}
	if config.noEdge != "" {
		log.Error(config.noEdge)
	}
	if a.syncer, err = sync.New(a.datapath.Tables); err != nil {
		return err
	}
	if a.pods, err = pods.New(a.datapath.Tables.OptedOut, config.PodCgroups, a.datapath.CgroupPath(), log); err != nil {
		return err
	}
	a.sockets = terminate.New(a.datapath, terminate.Config{
		Method: terminate.Method(config.Terminate), TCPDrain: config.TCPDrain, Serves: a.serves, Log: log,
	})
	defer a.sockets.Close()
	a.edge = a.newEdge()
	if datapath.Attached(config.BPFFS) {
		if err := a.datapath.Attach(); err != nil {
			return err
		}
		log.Info("took over from an earlier agent", "cgroup", a.datapath.CgroupPath())
	}
	err = a.serve(ctx)
	if err == nil && !a.synced && !datapath.Attached(config.BPFFS) {
		return a.giveUp(nil) // stopped while it waited for the source
	}
	return err
}

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

// wait waits for what goes on beside the loop, but not for a file system that
// does not answer.
func wait(group *gosync.WaitGroup) {
	ended := make(chan struct{})
	go func() {
		group.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(3 * time.Second):
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
		case <-audit:
			a.audit()
			retry.Reset(0)
		}
	}
}

// audit mends the tables, and what was taken from under the agent: pins and
// links.
func (a *Agent) audit() {
	if a.synced {
		mended, err := a.datapath.Mend()
		for _, what := range append(mended, a.edge.Mend()...) {
			a.log.Error("mended what somebody else has taken away", "what", what)
		}
		if err != nil {
			a.log.Error("the datapath is damaged and cannot be mended", "error", err)
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

// take brings one event of the source into the tables. Until the source is
// complete, nothing is programmed and nothing removed (R4).
func (a *Agent) take(ev source.Event) error {
	a.noteSource(ev)
	delta := a.table.Apply(ev.Changes)
	optOuts := a.optOuts.Apply(ev.Changes)
	a.noteNode()
	a.edge.SetNode(a.table.OwnAddresses())
	a.edge.SetPods(a.podsByPacket())
	if !ev.Synced {
		return nil
	}
	first := !a.synced
	if first || delta.Targets {
		a.wantHealth(&delta)
	}
	if first {
		delta = completeState(a.table)
	}
	if first || optOuts {
		a.applyOptOuts()
	}
	begin := time.Now()
	a.edge.Reach(elsewhere(delta))
	if err := a.syncer.Apply(delta); err != nil {
		if first && !datapath.Attached(a.config.BPFFS) {
			return a.giveUp(fmt.Errorf("nothing is attached, because not all Services fit into the tables: %w", err))
		}
		a.log.Error("not all of the change is in the tables; what was there serves on", "error", err)
	}
	a.edge.FollowDSR(goesByDSR(delta))
	a.lookAfterSockets()
	a.log.Debug("applied a change", "objects", len(ev.Changes), "plans", len(delta.Plans), "took", time.Since(begin))
	if first {
		return a.becomeReady(len(delta.Plans))
	}
	return nil
}

// becomeReady attaches the programs, unless an earlier agent did: they find the
// complete state in the tables.
func (a *Agent) becomeReady(objects int) error {
	a.edge.Start()
	if !datapath.Attached(a.config.BPFFS) {
		if err := a.datapath.Attach(); err != nil {
			return a.giveUp(err)
		}
	}
	a.synced = true
	// Reading it all took more than keeping it does; and while it was read, to
	// collect garbage so often would have taken time.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
	for _, after := range freeAfter {
		time.AfterFunc(after, debug.FreeOSMemory)
	}
	a.changed(true, true) // of what happened while no agent was running
	a.log.Info("ready", "services", objects, "cgroup", a.datapath.CgroupPath(), "after", time.Since(a.started).Round(time.Millisecond))
	a.tellManager(daemon.SdNotifyReady)
	return nil
}

// tellManager tells the service manager, if it wants to know (sd_notify(3)).
func (a *Agent) tellManager(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		a.log.Warn("the service manager could not be told", "state", state, "error", err)
	}
}

// giveUp leaves a node on which nothing was attached as it was found.
func (a *Agent) giveUp(err error) error {
	a.datapath.Close()
	return errors.Join(err, datapath.Cleanup(a.config.BPFFS))
}

func completeState(table *service.Table) service.Delta {
	cidrs, pods, balancers := table.ServiceCIDRs(), table.PodNetworks(), table.Balancers()
	delta := service.Delta{Plans: map[service.Ref]*service.Plan{}, ServiceCIDRs: &cidrs, PodNetworks: &pods, Balancers: &balancers}
	for owner, plan := range table.Owners() {
		delta.Plans[owner] = plan
	}
	return delta
}

// noteNode says so if this node's name is none of the Nodes'.
func (a *Agent) noteNode() {
	unknown := a.table.UnknownNode()
	a.mu.Lock()
	defer a.mu.Unlock()
	if unknown && !a.unknownNode {
		a.log.Warn("no Node has this node's name: no endpoint counts as local, and there are no NodePorts; is --node-name right?", "node", a.config.NodeName)
	}
	a.unknownNode = unknown
}

// updateAddresses reads the addresses of this node's interfaces anew (R22).
func (a *Agent) updateAddresses() {
	addresses, err := localAddresses()
	if err != nil {
		a.log.Error("the addresses of this node cannot be read; those known so far are used", "error", err)
		return
	}
	delta := a.table.SetLocalAddresses(addresses)
	a.edge.SetPods(a.podsByPacket())
	if a.synced {
		a.program(delta)
	}
}

// program brings a change of the table into the datapath's.
func (a *Agent) program(delta service.Delta) {
	a.edge.Reach(elsewhere(delta))
	if err := a.syncer.Apply(delta); err != nil {
		a.log.Error("not all of the change is in the tables; what was there serves on", "error", err)
	}
	a.edge.FollowDSR(goesByDSR(delta))
	a.lookAfterSockets()
}
