// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"math"
	"sync"

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
)

// newHealth returns the part that answers load balancers (R34, R35).
func (a *Agent) newHealth(component.Env) (*component.Instance, error) {
	a.nodePorts = nodehealth.NewNodePorts(a.health.Healthy, openFiles()/2, maxConnections(), a.log)
	if !bpf.Attached(a.config.BPFFS) {
		a.health.SetFaults(faultsOfSource, condition.List{assess.NotSynced("nothing is attached")})
	}
	return &component.Instance{Prepare: a.noteQueued, Apply: a.serveHealthPorts, Written: a.noteWritten, Conditions: a.healthConditions, Close: a.nodePorts.Close}, nil
}

// newProbe returns the part that connects to a Service of its own, if it is enabled.
func (a *Agent) newProbe(env component.Env) (*component.Instance, error) {
	if !a.config.SelfProbe {
		return &component.Instance{}, nil
	}
	probe, err := selfprobe.New(a.log)
	if err != nil {
		return nil, err
	}
	env.Cluster.Apply(probe.Objects(env.Node))
	begin := sync.OnceFunc(probe.Begin)
	return &component.Instance{
		Run: []component.Task{{Name: "self-probe", Run: probe.Run}}, Faults: probe.Conditions,
		Repair: func() []string { begin(); return nil }, // called once the hooks are attached
	}, nil
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

// noteQueued reports a change that is about to be written to the tables, and whether this node's Node asks for no
// traffic.
func (a *Agent) noteQueued(service.Delta) {
	a.health.SetIneligible(a.cluster.Ineligible())
	for _, f := range service.Families {
		a.health.Queued(f)
	}
}

// noteWritten reports the state of the tables.
func (a *Agent) noteWritten() {
	for _, f := range service.Families {
		if a.syncer.Stuck(f) {
			a.health.Queued(f)
		} else {
			a.health.Updated(f)
		}
	}
	a.nodePorts.Refresh(a.inTables)
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
}

// healthConditions returns the conditions of the agent's health and of healthCheckNodePorts.
func (a *Agent) healthConditions() condition.List {
	all := a.health.Conditions()
	for _, p := range a.nodePorts.Problems() {
		all = append(all, p.Problem)
	}
	return all
}
