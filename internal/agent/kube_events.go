// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source/kube"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/part/kubeevent"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/wakeup"
)

// eventInterval is how often conditions are compared with the last ones. One that a retry ends sooner may
// become no Event.
const eventInterval = 5 * time.Second

// events writes conditions as Events.
type events struct {
	agent    *Agent
	recorder *kubeevent.Recorder
	started  bool // the tables hold the complete state
	// objectsChanged: the conditions of objects may differ from the last ones that became Events.
	objectsChanged atomic.Bool

	mu sync.Mutex
	// lost holds Services that lost their last endpoint, until that is an Event.
	lost map[service.Ref]time.Time
}

// newEvents returns the part that writes Events: nothing with manifests.
func (a *Agent) newEvents(component.Env) (*component.Instance, error) {
	server, ok := a.source.(*kube.Source)
	if !ok {
		return &component.Instance{}, nil
	}
	e := &events{agent: a, recorder: kubeevent.New(server.Events(), a.config.NodeName, a.log), lost: map[service.Ref]time.Time{}}
	return &component.Instance{
		Objects: e.nodes, Prepare: e.noteLost, Start: func() { e.started = true }, Written: func() { e.objectsChanged.Store(true) },
		Run: []component.Task{{Name: "Events", Run: e.recorder.Run}, {Name: "conditions for Events", Run: e.run}},
	}, nil
}

// run passes the conditions to the recorder, until ctx ends.
func (e *events) run(ctx context.Context) error {
	var objects []service.ObjectProblem
	for wakeup.Sleep(ctx, eventInterval) {
		if e.objectsChanged.CompareAndSwap(true, false) {
			objects = e.objectItems()
		}
		e.recordLost()
		e.recorder.Set(slices.Concat(objects, e.nodeItems()))
	}
	return nil
}

// objectItems returns the conditions of objects.
func (e *events) objectItems() (all []service.ObjectProblem) {
	for _, st := range e.agent.syncer.Status() {
		for _, c := range st.Conditions() {
			all = append(all, service.ObjectProblem{Object: st.Owner, Problem: c})
		}
	}
	return all
}

// nodeItems returns the conditions of this node's Node, and of healthCheckNodePorts.
func (e *events) nodeItems() (all []service.ObjectProblem) {
	node := service.Ref{Kind: service.KindNode, Name: e.agent.config.NodeName}
	for _, c := range slices.Concat(e.agent.health.Conditions(), e.agent.listeners.conditions()) {
		all = append(all, service.ObjectProblem{Object: node, Problem: c})
	}
	return append(all, e.agent.nodePorts.Problems()...)
}

// nodes tells the recorder which Nodes share the Events.
func (e *events) nodes(changes []service.Change) {
	if slices.ContainsFunc(changes, func(c service.Change) bool { return c.Ref.Kind == service.KindNode }) {
		e.recorder.SetNodes(e.agent.cluster.NodeNames())
	}
}

// noteLost records which Services lost their last endpoint. One counts only if it stays so: an update of a
// Service and of its EndpointSlices are two changes.
func (e *events) noteLost(delta service.Delta) {
	if !e.started {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for ref, plan := range delta.Plans {
		if _, lost := e.lost[ref]; lost && (plan == nil || len(plan.Sets) > 0) {
			delete(e.lost, ref)
		}
	}
	for _, ref := range delta.Lost {
		e.lost[ref] = time.Now()
	}
}

// recordLost makes Events of Services that have lost their endpoints for a while.
func (e *events) recordLost() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for ref, since := range e.lost {
		if time.Since(since) >= eventInterval {
			delete(e.lost, ref)
			e.recorder.Note(service.ObjectProblem{Object: ref, Problem: condition.EndpointsLost.New("no endpoint takes new connections any more: clients are refused")})
		}
	}
}
