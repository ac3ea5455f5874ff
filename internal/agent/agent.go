// SPDX-License-Identifier: Apache-2.0

// Package agent runs on each node. It reads objects from a source, has package service resolve them, and keeps
// the datapath's tables up to date. Traffic does not depend on the agent: the attached programs keep serving
// without it.
package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	gosync "sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/part/healthcheck"
	"beeline.io/beeline/internal/part/nodehealth"
	"beeline.io/beeline/internal/report/metrics"
	"beeline.io/beeline/internal/tables/reconcile"
)

// Agent is a running agent.
type Agent struct {
	config  Config
	log     *slog.Logger
	version string
	started time.Time

	source      source.Source
	server      apiServer // of source; unused with manifests
	datapath    *bpf.Datapath
	syncer      *reconcile.Syncer
	nodeSockets nodeSockets
	cluster     *service.Cluster
	network     *node.Network
	components  component.Running
	prober      *healthcheck.Prober
	listeners   listeners
	health      *nodehealth.Tracker
	nodePorts   *nodehealth.NodePorts
	metrics     *metrics.Metrics
	conditions  *conditions

	// repairErrors is the error of the last repair. Only the loop uses it.
	repairErrors string

	synced bool // the complete state is in the tables and the programs are attached; only the loop uses it

	mu          gosync.Mutex
	sourceState api.Source // as the socket shows it
	// checked holds the endpoints with health checks.
	checked map[service.Ref][]service.CheckedEndpoint
}

// Run runs an agent until ctx ends. The programs stay attached.
//
// If nothing is attached and the manifests are invalid, it fails and restores the node; with an API server it
// waits for the complete state before it attaches programs. If an earlier agent's programs are attached, it
// reports the errors and keeps serving with the existing tables.
func Run(ctx context.Context, config Config, version string, log *slog.Logger) error {
	a := &Agent{config: config, log: log, version: version, started: time.Now(), health: nodehealth.NewTracker(time.Now)}
	var err error
	if a.source, a.sourceState, err = newSource(config, version, &a.server, log); err != nil {
		return err
	}
	loaded := a.loadManifests()
	a.cluster = service.NewCluster(config.Service)
	if a.network, err = node.Follow(); err != nil {
		return errors.Join(<-loaded, err)
	}
	a.datapath, err = bpf.Open(config.datapathOptions())
	bad := <-loaded
	if err != nil {
		return errors.Join(bad, err)
	}
	defer a.datapath.Close()
	if bad != nil && !bpf.Attached(config.BPFFS) {
		return a.rollback(bad)
	}
	if bad != nil {
		log.Error("the manifests are invalid; the tables of an earlier agent stay in use")
	}
	if a.prober, err = a.newProber(); err != nil {
		return err
	}
	if a.syncer, err = reconcile.New(a.datapath.Tables); err != nil {
		return err
	}
	a.syncer.SetShares(config.Shares)
	a.metrics = a.newMetrics()
	a.syncer.SetProgrammed(a.metrics.Proxy.Programmed)
	a.components, err = slices.Concat(config.Components, a.parts()).New(component.Env{Datapath: a.datapath, Syncer: a.syncer, BPFFS: config.BPFFS, Node: config.NodeName, Cluster: a.cluster,
		Network: a.network, Metrics: a.metrics.Proxy, Log: log})
	if err != nil {
		return err
	}
	defer a.components.Close()
	a.metrics.Collect("components", a.components.Metrics)
	if bpf.Attached(config.BPFFS) {
		if err := a.datapath.Attach(); err != nil {
			return err
		}
		log.Info("took over from an earlier agent", "cgroup", a.datapath.CgroupPath())
	}
	err = a.serve(ctx)
	if err == nil && !a.synced && !bpf.Attached(config.BPFFS) {
		return a.rollback(nil) // stopped while waiting for the source
	}
	return err
}

// datapathOptions returns the options of the datapath and its components.
func (c *Config) datapathOptions() bpf.Options {
	o := bpf.Options{BPFFS: c.BPFFS, CgroupRoot: c.CgroupRoot, Limits: c.Limits}
	c.Components.Options(&o)
	return o
}

// sdNotify sends a state to the service manager, if any (sd_notify(3)).
func (a *Agent) sdNotify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		a.log.Warn("cannot notify the service manager", "state", state, "error", err)
	}
}

// rollback restores a node on which nothing was attached before.
func (a *Agent) rollback(err error) error {
	a.datapath.Close()
	_, failed := removePins(a.config.BPFFS, a.config.Components)
	return errors.Join(err, failed)
}
