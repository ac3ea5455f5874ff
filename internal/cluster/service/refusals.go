// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/plural"
	"beeline.io/beeline/internal/util/suggest"
)

// warnEndpoints reports why new connections to a port are rejected, if they are (R10, R11, R16, R18). It is a problem
// if endpoints fail their health check; and in manifests if there is none or none is usable, because no controller
// will change that.
func (p *portPlan) warnEndpoints(all []candidate) {
	why, manifests := "", p.config.Manifests
	var problem *condition.Kind
	switch {
	case len(p.sets.cluster) > 0:
		why = p.noneHere()
	case len(all) == 0:
		why = p.noEndpoints()
		if manifests {
			problem = condition.EndpointsMissing
		}
	case slices.ContainsFunc(all, candidate.isDown):
		why, problem = noneUsable(all), condition.AllBackendsDown
	default:
		why = noneUsable(all)
		if manifests {
			problem = condition.EndpointsUnusable
		}
	}
	if why == "" {
		return
	}
	name := fmt.Sprintf("%s port %s", p.family, shownPort(p.port.Name, p.port.Protocol))
	if problem != nil {
		p.plan.problem(problem.New("%s: clients are rejected: %s", name, why))
	}
	if problem == nil || problem == condition.AllBackendsDown {
		p.plan.Refusals = append(p.plan.Refusals, name+": "+why)
	}
}

// warnChecks reports a port that the health check of another one cannot tell about: a server with TLS answers no plain
// request, and one without it no handshake.
func (p *servicePlan) warnChecks() {
	check := p.svc.Check
	if check.Port != 0 {
		return
	}
	for _, port := range p.svc.Ports {
		withTLS, without := port.Name == "https" || port.Port == 443, port.Name == "http" || port.Port == 80
		if port.Protocol == TCP && (check.Probe.Kind == CheckHTTP && withTLS || check.Probe.Kind == CheckHTTPS && without && !withTLS) {
			p.plan.problem(condition.HealthCheckUnlikely.New("port %d (%s) is checked by %s", port.Port, shownPort(port.Name, port.Protocol), check.Probe.Kind))
		}
	}
}

// isDown reports whether new connections would go to an endpoint if it passed its health check.
func (c candidate) isDown() bool { return c.down && c.weight > 0 }

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
	return fmt.Sprintf("%s is Local, and of %s none is on this node", strings.Join(local, " and "), plural.Of(len(p.sets.cluster), "usable endpoint"))
}

// noEndpoints returns why a port has no endpoint.
func (p *portPlan) noEndpoints() string {
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
		return fmt.Sprintf("no EndpointSlice of addressType %s has the label kubernetes.io/service-name: %s", p.family, p.svc.Name)
	case ours || endpoints == 0:
		return "its EndpointSlices have no endpoints"
	case len(others) == 0:
		return "its EndpointSlices have no ports"
	}
	return fmt.Sprintf("its EndpointSlices have no port of this name and protocol, but %s; a port of a slice belongs to the Service's port of the same name",
		strings.Join(slices.Sorted(maps.Keys(others)), ", "))
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
	return "no endpoint is usable: " + strings.Join(parts, ", ")
}

// OrphanSlices returns the EndpointSlices whose Service does not exist, or has none of their ports, sorted. With an API
// server that is normal for a moment; in manifests it is a mistake.
func (t *Cluster) OrphanSlices() (all []ObjectProblem) {
	for ref, list := range t.byService {
		if svc := t.services[ref]; svc != nil {
			all = append(all, otherPorts(svc, list)...)
			continue
		}
		if ref.Name == "" { // the source reports a slice without the label
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

// otherPorts returns the slices with ports of which a Service has none.
func otherPorts(svc *Service, list []*EndpointSlice) (all []ObjectProblem) {
	var names []string
	for _, p := range svc.Ports {
		names = append(names, shownPort(p.Name, p.Protocol))
	}
	for _, s := range list {
		var others []string
		for _, p := range s.Ports {
			others = append(others, shownPort(p.Name, p.Protocol))
		}
		if len(names) > 0 && len(others) > 0 && !slices.ContainsFunc(others, func(p string) bool { return slices.Contains(names, p) }) {
			all = append(all, ObjectProblem{s.Ref(), condition.EndpointSliceUnused.New("ports: %s has no port %s, but %s; a port of a slice belongs to the Service's port of the same name and protocol",
				svc.Ref(), strings.Join(others, ", "), strings.Join(names, ", "))})
		}
	}
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
