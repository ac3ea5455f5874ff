// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"fmt"
	"slices"
)

// finish sorts the plan and settles what one object asks for twice. The same
// address in two fields is no problem if both mean one port.
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
			p.Problems = append(p.Problems, fmt.Sprintf("%s %s of port %s is its port %s already: change one of them",
				f.Kind, f.Key, f.Port, kept[last].Port))
		}
		kept[last].stands(f.Kind)
	}
	if len(kept) < len(p.Frontends) {
		p.Frontends = slices.Clip(kept)
		p.keepUsedSets()
	}
	bySet := func(a, b BackendSet) int { return a.Key.Compare(b.Key) }
	slices.SortFunc(p.Sets, bySet)
	slices.SortFunc(p.Kept, bySet)
	slices.Sort(p.Refusals)
	slices.Sort(p.Problems)
	p.Problems = slices.Compact(p.Problems)
}

// within orders the kinds that one object asks for under one key: the first decides what
// clients meet there (R38). It is the order in which kube-proxy's rules go before each other.
func (k FrontendKind) within() int {
	switch k {
	case LoadBalancer, ExternalIP:
		return int(k) - int(HostPort)
	}
	return int(k)
}

// stands notes that the object has the frontend's key in another field, too (R38). To
// other objects, and to bind(), the address remains its ClusterIP or its NodePort.
func (f *Frontend) stands(other FrontendKind) {
	switch {
	case f.Kind == ClusterIP: // no external field has the key
	case other == ClusterIP:
		f.AtClusterIP = true
	case other == NodePort:
		f.Kind = NodePort
	}
}

// keepUsedSets drops the sets that no frontend sends anything to.
func (p *Plan) keepUsedSets() {
	used := usedSets(p.Frontends)
	p.Sets = slices.DeleteFunc(p.Sets, func(s BackendSet) bool { return !used[s.Key] })
}

// usedSets are the sets that frontends send something to.
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

// equalPlans says whether two plans, nil for none, ask for the same.
func equalPlans(a, b *Plan) bool {
	if a == nil || b == nil || a == b {
		return a == b
	}
	return slices.EqualFunc(a.Frontends, b.Frontends, equalFrontends) &&
		slices.EqualFunc(a.Sets, b.Sets, equalSets) &&
		slices.EqualFunc(a.Kept, b.Kept, equalSets) &&
		a.TableSize == b.TableSize &&
		slices.Equal(a.Problems, b.Problems) && slices.Equal(a.Refusals, b.Refusals)
}

func equalFrontends(a, b Frontend) bool {
	return a.Key == b.Key && a.Kind == b.Kind && a.Port == b.Port && a.Decisions == b.Decisions &&
		a.Affinity == b.Affinity && a.OneAddress == b.OneAddress && a.OwnAddress == b.OwnAddress &&
		a.AtClusterIP == b.AtClusterIP &&
		a.DSR == b.DSR && a.Untracked == b.Untracked && slices.Equal(a.SourceRanges, b.SourceRanges)
}

func equalSets(a, b BackendSet) bool { return a.Key == b.Key && slices.Equal(a.Backends, b.Backends) }
