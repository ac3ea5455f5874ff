// SPDX-License-Identifier: Apache-2.0

// Package agent is the one program that runs on a node: it takes objects from
// a source, lets package service decide, and keeps the datapath's tables in
// agreement. It owns no traffic: what it attached goes on without it.
package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	gosync "sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/edge"
	"beeline.io/beeline/internal/observe"
	"beeline.io/beeline/internal/pods"
	"beeline.io/beeline/internal/probe"
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
	server   apiServer // where objects come from, unless from files
	datapath *datapath.Datapath
	syncer   *sync.Syncer
	// addresses of this node's interfaces, of the loop.
	addresses []netip.Addr
	table     *service.Table
	optOuts   *service.OptOuts
	pods      *pods.Tracker
	sockets   *terminate.Job
	edge      *edge.Edge // nil: off
	prober    *probe.Prober

	// unmended says what mend could not do the last time; only loop looks.
	unmended string

	synced bool // the complete state is in the tables and attached; only loop looks

	mu          gosync.Mutex
	source      observe.Source // what the socket's requests see of the source
	unknownNode bool
	// nodeDeleted: this node's Node object has been deleted (R39).
	nodeDeleted bool
	// untoldPods is observe.Status.UntoldPods.
	untoldPods int
	// noOwnAddress is observe.Status.NoOwnAddress.
	noOwnAddress bool
	// optOutProblems are those of objects that ask for no socket shortcut.
	optOutProblems []service.OptOutProblem
	// strays are the slices in manifests whose Service does not exist.
	strays []service.Stray
	// checked are the endpoints with health checks.
	checked map[service.Ref][]service.Checked
}

// Run runs an agent until ctx ends. It leaves everything attached.
//
// On a node where nothing is attached yet it fails if the manifests are bad,
// and leaves the node as it found it, and waits for an API server before it attaches
// anything. Where an earlier agent's programs serve, it reports what is bad and
// serves on with what is there.
func Run(ctx context.Context, config Config, version string, log *slog.Logger) error {
	a := &Agent{config: config, log: log, version: version, started: time.Now()}
	var err error
	if a.objects, a.source, err = newSource(config, version, &a.server, log); err != nil {
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
	a.syncer.SetShares(config.Shares)
	if err := a.syncer.AcceptTunnels(config.acceptsTunnels() != ""); err != nil {
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
