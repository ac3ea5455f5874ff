// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"runtime/debug"
	"slices"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/observe"
	"beeline.io/beeline/internal/service"
	"beeline.io/beeline/internal/source"
)

// take brings one event of the source into the tables. Until the source is
// complete, nothing is programmed and nothing removed (R4).
func (a *Agent) take(ev source.Event) error {
	a.noteSource(ev)
	a.table.SetServer(a.server.addresses())
	if a.config.IgnoreAnnotations {
		ev.Changes = service.WithoutAnnotations(ev.Changes)
	}
	delta := a.table.Apply(ev.Changes)
	optOuts := a.optOuts.Apply(ev.Changes)
	a.noteNode()
	a.noteStrays(ev.Synced)
	a.noteOwnAddress()
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
	a.edge.Forward(a.forwards(delta))
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

// noteStrays says so if manifests have slices whose Service does not exist.
func (a *Agent) noteStrays(synced bool) {
	if a.config.Manifests == "" || !synced {
		return
	}
	strays := a.table.Strays()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range strays {
		if !slices.Contains(a.strays, s) {
			a.log.Warn("an EndpointSlice is of no use", "object", s.Slice.String(), "why", s.Reason)
		}
	}
	a.strays = strays
}

// strayStatus adds what noteStrays has found.
func (a *Agent) strayStatus(s *observe.Status) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, stray := range a.strays {
		s.AddProblem(stray.Slice, stray.Reason)
	}
}

// noteNode says so if this node's name is none of the Nodes', or none any more, and if Nodes do not
// say where their pods are.
func (a *Agent) noteNode() {
	unknown, deleted, untold := a.table.UnknownNode(), a.table.OwnNodeDeleted(), a.table.UntoldPods()
	a.mu.Lock()
	defer a.mu.Unlock()
	if untold > 0 && a.untoldPods == 0 {
		a.log.Warn("Nodes without podCIDRs: their pods cannot be told from clients outside; name the networks of pods with --pod-networks", "nodes", untold)
	}
	a.untoldPods = untold
	if unknown && !a.unknownNode {
		a.log.Warn("no Node has this node's name: there are no NodePorts, and only endpoints that name it count as local; is --node-name right?", "node", a.config.NodeName)
	}
	if deleted && !a.nodeDeleted {
		a.log.Warn("the Node object of this node has been deleted: its last addresses, zone and podCIDRs stay in force until there is another", "node", a.config.NodeName)
	}
	a.unknownNode, a.nodeDeleted = unknown, deleted
}
