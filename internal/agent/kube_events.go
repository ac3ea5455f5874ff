// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"slices"
	"time"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source/kube"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/part/kubeevent"
	"beeline.io/beeline/internal/report/condition"
)

// eventInterval is how often conditions are compared with the last ones. One that a retry ends sooner may
// become no Event.
const eventInterval = 5 * time.Second

// newRecorder returns the recorder of Events; nil with manifests.
func (a *Agent) newRecorder() *kubeevent.Recorder {
	server, ok := a.objects.(*kube.Source)
	if !ok {
		return nil
	}
	return kubeevent.New(server.Events(), a.config.NodeName, a.log)
}

// eventTasks returns the tasks that write Events.
func (a *Agent) eventTasks() []component.Task {
	if a.recorder == nil {
		return nil
	}
	return []component.Task{{Name: "Events", Run: a.recorder.Run}, {Name: "conditions for Events", Run: a.recordConditions}}
}

// recordConditions passes the conditions to the recorder, until ctx ends.
func (a *Agent) recordConditions(ctx context.Context) error {
	ticker := time.NewTicker(eventInterval)
	defer ticker.Stop()
	var objects []kubeevent.Item
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if a.objectsChanged.CompareAndSwap(true, false) {
			objects = a.objectItems()
		}
		a.recordLost()
		a.recorder.Set(slices.Concat(objects, a.nodeItems()))
	}
}

// noteObjects reports that conditions of objects may have changed.
func (a *Agent) noteObjects() { a.objectsChanged.Store(true) }

// objectItems returns the conditions of objects.
func (a *Agent) objectItems() (all []kubeevent.Item) {
	for _, st := range a.syncer.Status() {
		for _, c := range st.Conditions() {
			all = append(all, kubeevent.Item{Object: st.Owner, Condition: c})
		}
	}
	return all
}

// nodeItems returns the conditions of this node's Node, and of healthCheckNodePorts.
func (a *Agent) nodeItems() (all []kubeevent.Item) {
	node := service.Ref{Kind: service.KindNode, Name: a.config.NodeName}
	for _, c := range slices.Concat(a.health.Conditions(), a.listeners.conditions()) {
		all = append(all, kubeevent.Item{Object: node, Condition: c})
	}
	for _, p := range a.nodePorts.Problems() {
		all = append(all, kubeevent.Item{Object: p.Owner, Condition: p.Condition})
	}
	return all
}

// recordNodes tells the recorder which Nodes share the Events.
func (a *Agent) recordNodes(changes []service.Change) {
	if a.recorder != nil && slices.ContainsFunc(changes, func(c service.Change) bool { return c.Ref.Kind == service.KindNode }) {
		a.recorder.SetNodes(a.cluster.NodeNames())
	}
}

// noteLost records which Services lost their last endpoint. One counts only if it stays so: an update of a
// Service and of its EndpointSlices are two changes.
func (a *Agent) noteLost(delta service.Delta) {
	if a.recorder == nil || !a.synced {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for ref, plan := range delta.Plans {
		if _, lost := a.lost[ref]; lost && (plan == nil || len(plan.Sets) > 0) {
			delete(a.lost, ref)
		}
	}
	for _, ref := range delta.Lost {
		a.lost[ref] = time.Now()
	}
}

// recordLost makes Events of Services that have lost their endpoints for a while.
func (a *Agent) recordLost() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for ref, since := range a.lost {
		if time.Since(since) >= eventInterval {
			delete(a.lost, ref)
			a.recorder.Note(kubeevent.Item{Object: ref, Condition: condition.EndpointsLost.New("no endpoint takes new connections any more: clients are refused")})
		}
	}
}
