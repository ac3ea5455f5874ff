// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"beeline.io/beeline/internal/condition"
	"beeline.io/beeline/internal/suggest"
)

// warnEndpoints reports why new connections to a port are rejected, if they are (R10, R11, R16, R18). In
// manifests it is a problem if no slice has the port, because no controller creates slices.
func (p *portPlan) warnEndpoints(all []candidate) {
	why, slip := "", false
	switch {
	case len(p.sets.cluster) > 0:
		why = p.noneHere()
	case len(all) == 0:
		why, slip = p.noEndpoints()
	default:
		why = noneUsable(all)
	}
	if why == "" {
		return
	}
	name := fmt.Sprintf("%s port %s", p.family, shownPort(p.port.Name, p.port.Protocol))
	if slip && p.config.Manifests {
		p.plan.problem(condition.EndpointsMissing.New("%s: clients are rejected: %s", name, why))
		return
	}
	p.plan.Refusals = append(p.plan.Refusals, name+": "+why)
}

func shownPort(name string, protocol Protocol) string {
	if name == "" {
		return "(without a name)/" + protocol.String()
	}
	return name + "/" + protocol.String()
}

// noneHere returns the effect of traffic policy Local if this node has no usable endpoint.
func (p *portPlan) noneHere() string {
	var local []string
	if p.svc.InternalLocal {
		local = append(local, "internalTrafficPolicy")
	}
	if p.svc.ExternalLocal {
		local = append(local, "externalTrafficPolicy")
	}
	if len(local) == 0 || len(p.sets.local) > 0 {
		return ""
	}
	return fmt.Sprintf("%s is Local, and none of %d usable endpoints is on this node", strings.Join(local, " and "), len(p.sets.cluster))
}

// noEndpoints returns why a port has no endpoint. slip means that this is probably a mistake: a slice is
// missing, or has endpoints at other ports.
func (p *portPlan) noEndpoints() (why string, slip bool) {
	others, endpoints, ours := map[string]struct{}{}, 0, false
	there := false
	for _, s := range p.slices {
		if s.Family != p.family {
			continue
		}
		there = true
		endpoints += len(s.Endpoints)
		for _, port := range s.Ports {
			if port.Name == p.port.Name && port.Protocol == p.port.Protocol {
				ours = true
			} else {
				others[shownPort(port.Name, port.Protocol)] = struct{}{}
			}
		}
	}
	switch {
	case !there:
		return fmt.Sprintf("no EndpointSlice of addressType %s has the label kubernetes.io/service-name: %s", p.family, p.svc.Name), true
	case ours || endpoints == 0:
		return "its EndpointSlices have no endpoints", false
	case len(others) == 0:
		return "its EndpointSlices have no ports", true
	}
	return fmt.Sprintf("its EndpointSlices have no port of this name and protocol, but %s; a port of a slice belongs to the Service's port of the same name",
		strings.Join(slices.Sorted(maps.Keys(others)), ", ")), true
}

// noneUsable counts why the endpoints of a port take no new connections.
func noneUsable(all []candidate) string {
	down, weightless, notReady := 0, 0, 0
	for _, c := range all {
		switch {
		case c.weight == 0:
			weightless++
		case c.down:
			down++
		default:
			notReady++
		}
	}
	var parts []string
	for _, part := range []struct {
		n    int
		text string
	}{{down, "%d down by the health check"}, {notReady, "%d not ready"}, {weightless, "%d of weight 0"}} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf(part.text, part.n))
		}
	}
	return fmt.Sprintf("none of %d endpoints is usable: %s", len(all), strings.Join(parts, ", "))
}

// OrphanSlices returns the EndpointSlices whose Service does not exist, sorted. With an API server that is
// normal for a moment; in manifests it is a mistake.
func (t *Cluster) OrphanSlices() (all []ObjectProblem) {
	for ref, list := range t.byService {
		if t.services[ref] != nil {
			continue
		}
		problem := condition.EndpointSliceUnused.New("metadata.labels[kubernetes.io/service-name]: there is no %s%s", ref, t.likelyService(ref))
		for _, s := range list {
			all = append(all, ObjectProblem{s.Ref(), problem})
		}
	}
	slices.SortFunc(all, func(a, b ObjectProblem) int { return a.Object.Compare(b.Object) })
	return all
}

// likelyService guesses the Service for which a slice is meant.
func (t *Cluster) likelyService(ref Ref) string {
	var names, namespaces []string
	for other := range t.services {
		if other.Namespace == ref.Namespace {
			names = append(names, other.Name)
		} else if other.Name == ref.Name {
			namespaces = append(namespaces, other.Namespace)
		}
	}
	if len(namespaces) > 0 {
		return fmt.Sprintf(", but one in namespace %s", slices.Min(namespaces))
	}
	return cmp.Or(suggest.DidYouMean(ref.Name, names), "; a slice belongs to the Service of that name in its own namespace")
}
