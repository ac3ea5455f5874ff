// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"fmt"
	"slices"
)

// finish sorts the plan and settles what one object asks for twice. The same
// address as ingress IP and external IP of one port is no problem: clients meet
// the same there.
func (p *Plan) finish() {
	slices.SortStableFunc(p.Frontends, func(a, b Frontend) int {
		return cmp.Or(a.Key.Compare(b.Key), cmp.Compare(a.Kind, b.Kind))
	})
	kept := p.Frontends[:0]
	for _, f := range p.Frontends {
		last := len(kept) - 1
		if last < 0 || kept[last].Key != f.Key {
			kept = append(kept, f)
		} else if kept[last].Port != f.Port {
			p.Problems = append(p.Problems, fmt.Sprintf("%s %s of port %s is its port %s already: change one of them",
				f.Kind, f.Key, f.Port, kept[last].Port))
		}
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

// keepUsedSets drops the sets that no frontend sends anything to.
func (p *Plan) keepUsedSets() {
	p.Sets = slices.DeleteFunc(p.Sets, func(s BackendSet) bool { return !usesSet(p.Frontends, s.Key) })
}

func usesSet(frontends []Frontend, key SetKey) bool {
	return slices.ContainsFunc(frontends, func(f Frontend) bool {
		return slices.ContainsFunc(f.Decisions[:], func(d Decision) bool { return d.Verdict == Balance && f.Set(d) == key })
	})
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
		a.DSR == b.DSR && a.Untracked == b.Untracked && slices.Equal(a.SourceRanges, b.SourceRanges)
}

func equalSets(a, b BackendSet) bool { return a.Key == b.Key && slices.Equal(a.Backends, b.Backends) }
