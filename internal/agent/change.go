// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"runtime/debug"
	"slices"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
	"beeline.io/beeline/internal/source"
)

// take brings one event of the source into the tables. Until the source is
// complete, nothing is programmed and nothing removed (R4).
func (a *Agent) take(ev source.Event) error {
	a.noteSource(ev)
	if a.config.IgnoreAnnotations {
		ev.Changes = service.WithoutAnnotations(ev.Changes)
	}
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
	if err := a.apply(delta); err != nil {
		a.logMissing(err)
	}
	a.log.Debug("applied a change", "objects", len(ev.Changes), "plans", len(delta.Plans), "took", time.Since(begin))
	if first {
		return a.becomeReady(len(delta.Plans))
	}
	return nil
}

func completeState(table *service.Table) service.Delta {
	cidrs, pods, balancers := table.ServiceCIDRs(), table.PodNetworks(), table.Balancers()
	delta := service.Delta{Plans: map[service.Ref]*service.Plan{}, ServiceCIDRs: &cidrs, PodNetworks: &pods, Balancers: &balancers}
	for owner, plan := range table.Owners() {
		delta.Plans[owner] = plan
	}
	return delta
}

// program is apply, and a word in the log if not all of it went.
func (a *Agent) program(delta service.Delta) {
	if err := a.apply(delta); err != nil {
		a.logMissing(err)
	}
}

func (a *Agent) logMissing(err error) {
	a.log.Error("not all of the change is in the tables; what fits is served, and what was there serves on", "error", err)
}

// apply brings a change into the tables as far as it goes; the loop tries the rest again.
func (a *Agent) apply(delta service.Delta) error {
	a.edge.Reach(elsewhere(delta))
	a.syncer.SetOwn(slices.Concat(a.addresses, a.table.OwnAddresses()))
	err := a.syncer.Apply(delta)
	a.edge.FollowDSR(goesByDSR(delta))
	a.lookAfterSockets()
	return err
}

// garbagePercent is how much garbage may lie beside what is in use: memory of a
// node is dearer than the little time that the collector takes.
const garbagePercent = 25

// freeAfter is when what the first reading took goes back to the system. What it left in
// pools goes with the second collection, and on a busy machine it takes a while until all
// is done that follows.
var freeAfter = []time.Duration{time.Second, 5 * time.Second, 20 * time.Second}

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
