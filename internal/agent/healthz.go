// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"math"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/part/nodehealth"
	"beeline.io/beeline/internal/part/selfprobe"
	"beeline.io/beeline/internal/report/assess"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/tables/reconcile"
)

// What finds faults of the datapath, for nodehealth.Tracker.SetFaults.
const (
	faultsOfSource     = "source"
	faultsOfRepair     = "repair"
	faultsOfComponents = "components"
	faultsOfProbe      = "self-probe"
)

// newHealth sets up what R34 and R35 need.
func (a *Agent) newHealth() error {
	a.health = nodehealth.NewTracker(time.Now)
	a.nodePorts = nodehealth.NewNodePorts(a.health.Healthy, openFiles()/2, maxConnections(), a.log)
	if !bpf.Attached(a.config.BPFFS) {
		a.health.SetFaults(faultsOfSource, condition.List{assess.NotSynced("nothing is attached")})
	}
	var err error
	if a.config.SelfProbe {
		a.probe, err = selfprobe.New(a.log)
	}
	return err
}

// openFiles returns the limit of the agent's open files.
func openFiles() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1024
	}
	return int(min(limit.Cur, math.MaxInt32))
}

// maxConnections returns how many connections each group of the agent's HTTP servers may have open. The four groups
// (/healthz at two addresses, /metrics, healthCheckNodePorts) and half of the open files for listeners leave enough for
// the datapath.
func maxConnections() int { return min(max(openFiles()/16, 32), 1024) }

// probeTasks returns the self-probe's task, if it is enabled.
func (a *Agent) probeTasks() []component.Task {
	if a.probe == nil {
		return nil
	}
	return []component.Task{{Name: "self-probe", Run: a.probe.Run}}
}

// noteQueued reports a change that is about to be written to the tables.
func (a *Agent) noteQueued() {
	for _, f := range service.Families {
		a.health.Queued(f)
	}
}

// noteTables reports the state of the tables after an attempt to write to them.
func (a *Agent) noteTables() {
	for _, f := range service.Families {
		if a.syncer.Stuck(f) {
			a.health.Queued(f)
		} else {
			a.health.Updated(f)
		}
	}
	a.nodePorts.Refresh(a.inTables)
	a.noteObjects()
}

// inTables reports whether the tables hold an object, at least in part.
func (a *Agent) inTables(ref service.Ref) bool {
	state, ok := a.syncer.StateOf(ref)
	return ok && state != reconcile.LeftOut
}

// serveHealthPorts serves the healthCheckNodePorts of changed Services.
func (a *Agent) serveHealthPorts(delta service.Delta) {
	for ref, plan := range delta.Plans {
		switch {
		case ref.Kind != service.KindService:
		case plan == nil:
			a.nodePorts.Set(ref, nil, false)
		default:
			a.nodePorts.Set(ref, plan.HealthPorts, a.inTables(ref))
		}
	}
}

// noteFaults reports what is wrong with the datapath after a repair. Only the loop calls it.
func (a *Agent) noteFaults(repair error) {
	var damaged condition.List
	if repair != nil {
		damaged = condition.List{condition.DatapathDamaged.New("programs, pins or tables were removed and cannot be restored: %v", repair)}
	}
	a.health.SetFaults(faultsOfRepair, damaged)
	a.health.SetFaults(faultsOfComponents, a.components.Faults())
	if a.probe != nil {
		a.health.SetFaults(faultsOfProbe, a.probe.Conditions())
	}
}

// healthConditions returns the conditions of the agent's health and of healthCheckNodePorts.
func (a *Agent) healthConditions() condition.List {
	all := a.health.Conditions()
	for _, p := range a.nodePorts.Problems() {
		all = append(all, p.Condition)
	}
	return all
}

// ineligible returns why load balancers must not use this node. Until the source is complete the Node is not
// known, and an earlier agent's tables serve.
func (a *Agent) ineligible(synced bool) string {
	if !synced {
		return ""
	}
	return a.cluster.Ineligible()
}
