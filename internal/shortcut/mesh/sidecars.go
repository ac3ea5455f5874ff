// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/sidecar"
	"beeline.io/beeline/internal/report/condition"
)

// A Sidecar is a pod whose connections go through a proxy in it.
type Sidecar struct {
	Pod service.Ref
	// UID is the UID in the name of the pod's cgroup.
	UID string
	sidecar.Rules
}

// Sidecars holds the pods of one node whose connections go through a proxy. It is not safe for concurrent use.
type Sidecars struct {
	node     string
	selector labels.Selector
	pods     map[service.Ref]*service.Pod // of the node that have not finished, selected or not
	// evaluated are the annotations of pods: they may be long, and other pods change.
	evaluated map[*service.Pod]evaluation

	list     []Sidecar
	left     []api.MeshLeft
	problems []service.ObjectProblem
}

// An evaluation is what sidecar.Proxy.Rules returns.
type evaluation struct {
	rules    sidecar.Rules
	problems []string
}

// NewSidecars returns a Sidecars without pods. A nil selector matches none.
func NewSidecars(node string, selector labels.Selector) *Sidecars {
	return &Sidecars{node: node, selector: selector, pods: map[service.Ref]*service.Pod{}}
}

// NamedBy returns the pod of the node that has this UID in the name of its cgroup, whether it is selected or not.
func (s *Sidecars) NamedBy(uid string) (pod service.Ref, found bool) {
	for ref, p := range s.pods {
		if uid == p.CgroupUID() && (!found || ref.Compare(pod) < 0) {
			pod, found = ref, true
		}
	}
	return pod, found
}

// Apply applies a batch of changes, and reports whether pods that are selected may have changed.
func (s *Sidecars) Apply(changes []service.Change) (changed bool) {
	for _, c := range changes {
		if c.Ref.Kind != service.KindPod {
			continue
		}
		changed = changed || s.selects(s.pods[c.Ref])
		delete(s.pods, c.Ref)
		if p, ok := c.Object.(*service.Pod); ok && s.node != "" && p.Node == s.node && !p.Finished {
			s.pods[c.Ref] = p
			changed = changed || s.selects(p)
		}
	}
	if changed {
		s.decide()
	}
	return changed
}

func (s *Sidecars) selects(p *service.Pod) bool {
	return p != nil && s.selector != nil && p.Proxy != nil && s.selector.Matches(labels.Set(p.Proxy.Labels))
}

// Pods returns the pods whose connections go through a proxy, sorted by their Refs. The list must not be modified.
func (s *Sidecars) Pods() []Sidecar { return s.list }

// Left returns the pods that are selected and left alone, sorted by their Refs. The list must not be modified.
func (s *Sidecars) Left() []api.MeshLeft { return s.left }

// Problems returns what is wrong with annotations, sorted by object. The list must not be modified.
func (s *Sidecars) Problems() []service.ObjectProblem { return s.problems }

func (s *Sidecars) decide() {
	before := s.evaluated
	s.list, s.left, s.problems, s.evaluated = nil, nil, nil, map[*service.Pod]evaluation{}
	for _, ref := range slices.SortedFunc(maps.Keys(s.pods), service.Ref.Compare) {
		p := s.pods[ref]
		if !s.selects(p) {
			continue
		}
		if why := leftAlone(p); why != "" {
			s.left = append(s.left, api.MeshLeft{Name: ref.Namespace + "/" + ref.Name, Why: why})
			continue
		}
		e, known := before[p]
		if !known {
			e.rules, e.problems = p.Proxy.Rules()
		}
		s.evaluated[p] = e
		s.list = append(s.list, Sidecar{ref, p.CgroupUID(), e.rules})
		for _, why := range e.problems {
			s.problems = append(s.problems, service.ObjectProblem{Object: ref, Problem: condition.AnnotationInvalid.New("%s", why).Do("write a list of ports, networks or devices, or \"*\"")})
		}
	}
}

// leftAlone returns why a pod is left alone; empty if it is not.
func leftAlone(p *service.Pod) string {
	switch {
	case p.Proxy.Left != "":
		return p.Proxy.Left
	case p.HostNetwork:
		return "it is in the host network, where its connections cannot be distinguished from the node's"
	case p.Proxy.Missing() != "":
		return p.Proxy.Missing()
	case p.CgroupUID() == "":
		return "it has no metadata.uid, after which the kubelet names its cgroup"
	}
	return ""
}
