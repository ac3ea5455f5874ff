// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"slices"

	"beeline.io/beeline/internal/report/condition"
)

// finish sorts the plan, and resolves requests of one object for the same address: no problem if both fields
// mean the same port.
func (p *Plan) finish() {
	slices.SortStableFunc(p.Frontends, func(a, b Frontend) int {
		return cmp.Or(a.Key.Compare(b.Key), cmp.Compare(a.Kind.within(), b.Kind.within()))
	})
	kept := p.Frontends[:0]
	for _, f := range p.Frontends {
		last := len(kept) - 1
		if last < 0 || kept[last].Key != f.Key {
			kept = append(kept, f)
			continue
		}
		if kept[last].Port != f.Port {
			p.problem(condition.AddressTaken.New("%s %s of port %s is already used by its port %s", f.Kind, f.Key, f.Port, kept[last].Port))
		}
		kept[last].stands(f.Kind)
	}
	if len(kept) < len(p.Frontends) {
		p.Frontends = slices.Clip(kept)
		p.keepUsedSets()
	}
	bySet := func(a, b BackendSet) int { return a.Key.Compare(b.Key) }
	slices.SortFunc(p.Sets, bySet)
	slices.SortFunc(p.Retained, bySet)
	slices.Sort(p.Refusals)
	p.Problems = p.Problems.Sort()
}

// problem adds a problem of the object.
func (p *Plan) problem(c condition.Condition) { p.Problems = append(p.Problems, c) }

// within orders the kinds that one object requests with the same key: the first decides for clients (R38). It
// is the order of kube-proxy's rules.
func (k FrontendKind) within() int {
	switch k {
	case LoadBalancer, ExternalIP:
		return int(k) - int(HostPort)
	}
	return int(k)
}

// stands records that another field of the object has the same key (R38). For other objects and for bind() the
// address remains its ClusterIP or NodePort.
func (f *Frontend) stands(other FrontendKind) {
	switch {
	case f.Kind == ClusterIP: // no external field has the key
	case other == ClusterIP:
		f.AtClusterIP = true
	case other == NodePort:
		f.Kind = NodePort
	}
}

// keepUsedSets removes the sets that no frontend uses.
func (p *Plan) keepUsedSets() {
	used := usedSets(p.Frontends)
	p.Sets = slices.DeleteFunc(p.Sets, func(s BackendSet) bool { return !used[s.Key] })
}

// usedSets returns the sets to which frontends send traffic.
func usedSets(frontends []Frontend) map[SetKey]bool {
	used := map[SetKey]bool{}
	for i := range frontends {
		f := &frontends[i]
		for _, d := range f.Decisions {
			if d.Verdict == Balance {
				used[f.Set(d)] = true
			}
		}
	}
	return used
}

// equalPlans reports whether two plans, each nil or not, request the same.
func equalPlans(a, b *Plan) bool {
	if a == nil || b == nil || a == b {
		return a == b
	}
	return slices.EqualFunc(a.Frontends, b.Frontends, equalFrontends) &&
		slices.EqualFunc(a.Sets, b.Sets, equalSets) &&
		slices.EqualFunc(a.Retained, b.Retained, equalSets) &&
		slices.Equal(a.HealthPorts, b.HealthPorts) &&
		a.TableSize == b.TableSize && a.Created.Equal(b.Created) &&
		slices.Equal(a.Problems, b.Problems) && slices.Equal(a.Refusals, b.Refusals)
}

func equalFrontends(a, b Frontend) bool {
	return a.Key == b.Key && a.Kind == b.Kind && a.Port == b.Port && a.Decisions == b.Decisions &&
		a.Affinity == b.Affinity && a.LoopbackExact == b.LoopbackExact && a.OwnAddress == b.OwnAddress &&
		a.ByPacket == b.ByPacket &&
		a.AtClusterIP == b.AtClusterIP &&
		a.DSR == b.DSR && a.Untracked == b.Untracked && slices.Equal(a.SourceRanges, b.SourceRanges)
}

func equalSets(a, b BackendSet) bool { return a.Key == b.Key && slices.Equal(a.Backends, b.Backends) }
