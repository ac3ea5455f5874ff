// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"runtime/debug"
	"slices"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/pinfs"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source"
)

// take applies one event of the source to the tables. Until the source is complete, it neither adds nor removes
// entries (R4).
func (a *Agent) take(ev source.Event) error {
	a.noteSource(ev)
	a.cluster.SetServer(a.server.addresses())
	begin := time.Now()
	if len(ev.Changes) > 0 {
		a.metrics.Proxy.Queued(ev.Changes)
	}
	if a.config.IgnoreAnnotations {
		ev.Changes = service.WithoutAnnotations(ev.Changes)
	}
	delta := a.cluster.Apply(ev.Changes)
	a.components.Objects(ev.Changes)
	if !ev.Synced {
		return nil
	}
	first := !a.synced
	if first || delta.Targets {
		a.wantHealth(&delta)
	}
	if first {
		triggers := delta.Triggers
		delta = completeState(a.cluster)
		delta.Triggers = triggers
	}
	a.apply(delta)
	if first || len(ev.Changes) > 0 {
		a.metrics.Proxy.Synced(begin, first)
	}
	a.log.Debug("applied a change", "objects", len(ev.Changes), "plans", len(delta.Plans), "took", time.Since(begin))
	if first {
		return a.becomeReady(len(delta.Plans))
	}
	return nil
}

func completeState(cluster *service.Cluster) service.Delta {
	cidrs, pods, balancers := cluster.ServiceCIDRs(), cluster.PodNetworks(), cluster.Balancers()
	delta := service.Delta{Plans: map[service.Ref]*service.Plan{}, ServiceCIDRs: &cidrs, PodNetworks: &pods, Balancers: &balancers}
	for owner, plan := range cluster.Owners() {
		delta.Plans[owner] = plan
	}
	return delta
}

// program applies a change that is not the source's.
func (a *Agent) program(delta service.Delta) {
	begin := time.Now()
	a.apply(delta)
	a.metrics.Proxy.Synced(begin, false)
}

// apply writes as much of a change to the tables as possible; the loop retries the rest.
func (a *Agent) apply(delta service.Delta) {
	a.components.Prepare(delta)
	a.syncer.SetOwn(slices.Concat(a.cluster.LocalAddresses(), a.cluster.OwnAddresses()))
	err := a.syncer.Apply(delta)
	a.metrics.Proxy.Planned(delta.Plans)
	a.components.Apply(delta)
	a.noteRemoved()
	a.components.Written()
	if err != nil {
		a.log.Error("part of the change is not in the tables; the rest is, and earlier entries keep serving", "error", err)
	}
}

// noteRemoved notifies the components of backends that the last change of the tables removed.
func (a *Agent) noteRemoved() {
	if a.synced {
		a.components.BackendsRemoved(a.syncer.TakeRemoved())
	}
}

// garbagePercent is the agent's GOGC: less memory for a little more CPU time.
const garbagePercent = 25

// freeAfter are the delays after which memory of the initial read is returned to the system. The second
// collection frees pooled memory, and on a busy machine the follow-up work takes a while.
var freeAfter = []time.Duration{time.Second, 5 * time.Second, 20 * time.Second}

// becomeReady attaches the programs, unless an earlier agent did. The tables already hold the complete state.
func (a *Agent) becomeReady(objects int) error {
	a.components.Start()
	if !bpf.Attached(a.config.BPFFS) {
		if err := a.datapath.Attach(); err != nil {
			return a.rollback(err)
		}
	}
	a.synced = true
	if err := pinfs.UnmarkDrain(a.config.BPFFS); err != nil {
		a.log.Warn("cannot remove the record of a drain, whose tables this agent has restored", "error", err)
	}
	a.health.SetFaults(faultsOfSource, nil)
	// The initial read needs more memory than the steady state and would be slow with a low GOGC, so lower
	// it only now.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
	for _, after := range freeAfter {
		time.AfterFunc(after, debug.FreeOSMemory)
	}
	a.components.BackendsRemoved(true, true) // for changes made while no agent was running
	a.log.Info("ready", "services", objects, "cgroup", a.datapath.CgroupPath(), "after", time.Since(a.started).Round(time.Millisecond))
	a.sdNotify(daemon.SdNotifyReady)
	return nil
}
