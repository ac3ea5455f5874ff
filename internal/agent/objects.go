// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"slices"
	"sync"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/report/assess"
)

// objectProblems reports what is wrong with this node's Node and with objects that have no plan.
type objectProblems struct {
	agent *Agent

	mu sync.Mutex
	// unknownNode, nodeDeleted (R39), unclassifiedPods and noOwnAddress are those of api.Status.
	unknownNode, nodeDeleted, noOwnAddress bool
	unclassifiedPods                       int
	// orphanSlices are EndpointSlices in manifests whose Service does not exist, and unknownNames the objects whose
	// annotations are.
	orphanSlices, unknownNames []service.ObjectProblem
	annotations                *service.UnknownAnnotations
}

func (a *Agent) newObjects(component.Env) (*component.Instance, error) {
	o := &objectProblems{agent: a, annotations: service.NewUnknownAnnotations()}
	return &component.Instance{
		Objects: func(changes []service.Change) { o.note(changes); o.noteOwnAddress() },
		Prepare: func(service.Delta) { o.noteOwnAddress() }, Status: o.status,
	}, nil
}

// note looks for problems after a change.
func (o *objectProblems) note(changes []service.Change) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.noteNode()
	if o.agent.config.Manifests != "" {
		o.noteProblems(&o.orphanSlices, o.agent.cluster.OrphanSlices(), "an EndpointSlice has no effect")
	}
	if o.annotations.Apply(changes) {
		o.noteProblems(&o.unknownNames, o.annotations.Problems(), "an annotation has no effect")
	}
}

// noteProblems keeps problems of objects for the status, and logs those that are new.
func (o *objectProblems) noteProblems(known *[]service.ObjectProblem, now []service.ObjectProblem, what string) {
	for _, p := range now {
		if !slices.Contains(*known, p) {
			p.Problem.At(p.Object.String()).Log(o.agent.log, what)
		}
	}
	*known = now
}

// noteNode warns if no Node has this node's name, if that Node was deleted, or if Nodes lack podCIDRs.
func (o *objectProblems) noteNode() {
	a := o.agent
	unknown, deleted, unclassified := a.cluster.UnknownNode(), a.cluster.OwnNodeDeleted(), a.cluster.UnclassifiedPods()
	if unclassified > 0 && o.unclassifiedPods == 0 {
		assess.NodesWithoutPodCIDRs(unclassified).Log(a.log, "objects")
	}
	o.unclassifiedPods = unclassified
	if unknown && !o.unknownNode {
		assess.NodeUnknown(a.config.NodeName).Log(a.log, "objects")
	}
	if deleted && !o.nodeDeleted {
		assess.NodeDeleted(a.config.NodeName).Log(a.log, "objects")
	}
	o.unknownNode, o.nodeDeleted = unknown, deleted
}

// noteOwnAddress warns if no device here has an address of this node's Node object.
func (o *objectProblems) noteOwnAddress() {
	a := o.agent
	own := slices.DeleteFunc(slices.Clone(a.cluster.OwnAddresses()), netip.Addr.IsLoopback)
	none := len(own) > 0 && !slices.ContainsFunc(own, func(x netip.Addr) bool { return slices.Contains(a.cluster.LocalAddresses(), x) })
	o.mu.Lock()
	defer o.mu.Unlock()
	if none && !o.noOwnAddress {
		assess.NodeAddressMissing(a.config.NodeName).Log(a.log, "objects")
	}
	o.noOwnAddress = none
}

// status adds the problems.
func (o *objectProblems) status(s *api.Status) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range slices.Concat(o.orphanSlices, o.unknownNames) {
		s.AddProblem(p.Object, p.Problem)
	}
	s.NodeUnknown, s.NodeDeleted, s.NodeAddressMissing, s.NodesWithoutPodCIDRs = o.unknownNode, o.nodeDeleted, o.noOwnAddress, o.unclassifiedPods
}
