// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// owner is an object that has, or asks for, frontends.
type owner struct {
	ref     Ref
	created time.Time
	// wanted is the plan as if there were no other object.
	wanted *Plan
	// plan is wanted without what others have; the same pointer if that is
	// nothing.
	plan *Plan
}

// claim is one owner's demand for one key. Claims compare equal if they have the
// same standing.
type claim struct {
	owner   *owner
	kind    FrontendKind
	created time.Time
}

// compare orders claims by precedence: the lower kind, then the older object,
// or, of Pods with one hostPort, the newer (R33), then the order of Refs.
func (c claim) compare(o claim) int {
	age := c.created.Compare(o.created)
	if c.kind == HostPort {
		age = -age
	}
	return cmp.Or(cmp.Compare(c.kind, o.kind), age, c.owner.ref.Compare(o.owner.ref))
}

// over says why a claim goes before another.
func (c claim) over(o claim) string {
	switch {
	case c.kind != o.kind:
		return fmt.Sprintf("as its %s", c.kind)
	case c.created.After(o.created):
		return "which is newer"
	case c.created.Before(o.created):
		return "which is older"
	}
	return "which is as old and comes first by name"
}

// claims knows who has each address and who would like to. What it holds
// depends on the claims alone, not on the order in which they came.
type claims struct {
	// holder has the first claim of each key.
	holder map[FrontendKey]claim
	// rivals has all claims of the keys with more than one, first to last.
	rivals map[FrontendKey][]claim
	// contested remembers, for each key that had rivals since the last settle,
	// who held it before.
	contested map[FrontendKey]claim
}

func newClaims() claims {
	return claims{map[FrontendKey]claim{}, map[FrontendKey][]claim{}, map[FrontendKey]claim{}}
}

// replace withdraws what an owner wanted and claims what it wants now; wanted
// nil withdraws all.
func (c *claims) replace(o *owner, wanted *Plan, created time.Time) {
	if o.wanted != nil {
		for i := range o.wanted.Frontends {
			c.withdraw(o.wanted.Frontends[i].Key, o)
		}
	}
	// Without the parts of a time that tell equal times apart.
	o.wanted, o.created = wanted, created.Round(0).UTC()
	if wanted != nil {
		wanted.Created = o.created
		for i := range wanted.Frontends {
			c.add(wanted.Frontends[i].Key, claim{o, wanted.Frontends[i].claims(), o.created})
		}
	}
}

func (c *claims) withdraw(key FrontendKey, o *owner) {
	all, contested := c.rivals[key]
	if !contested {
		delete(c.holder, key)
		return
	}
	c.remember(key)
	all = slices.DeleteFunc(all, func(r claim) bool { return r.owner == o })
	c.holder[key] = all[0]
	if c.rivals[key] = all; len(all) == 1 {
		delete(c.rivals, key)
	}
}

func (c *claims) add(key FrontendKey, new claim) {
	holder, taken := c.holder[key]
	if !taken {
		c.holder[key] = new
		return
	}
	c.remember(key)
	all, contested := c.rivals[key]
	if !contested {
		all = []claim{holder}
	}
	i, _ := slices.BinarySearchFunc(all, new, claim.compare)
	all = slices.Insert(all, i, new)
	c.rivals[key], c.holder[key] = all, all[0]
}

func (c *claims) remember(key FrontendKey) {
	if _, known := c.contested[key]; !known {
		c.contested[key] = c.holder[key]
	}
}

// settle returns the owners that gained or lost a key, or lost it to another
// than before, because of others' claims since the last settle.
func (c *claims) settle() map[*owner]struct{} {
	concerned := map[*owner]struct{}{}
	for key, before := range c.contested {
		now, taken := c.holder[key]
		if taken && now == before {
			continue
		}
		if taken {
			concerned[now.owner] = struct{}{}
		}
		for _, r := range c.rivals[key] {
			concerned[r.owner] = struct{}{}
		}
	}
	clear(c.contested)
	return concerned
}

// award returns the part of an owner's wanted plan that it has.
func (c *claims) award(o *owner) *Plan {
	lost := func(f Frontend) bool { return c.holder[f.Key].owner != o }
	if o.wanted == nil || !slices.ContainsFunc(o.wanted.Frontends, lost) {
		return o.wanted
	}
	plan := &Plan{
		Sets:      slices.Clone(o.wanted.Sets),
		TableSize: o.wanted.TableSize,
		Kept:      o.wanted.Kept,
		Problems:  slices.Clone(o.wanted.Problems),
		Created:   o.created,
	}
	for _, f := range o.wanted.Frontends {
		if !lost(f) {
			plan.Frontends = append(plan.Frontends, f)
			continue
		}
		if f.Kind == Echo {
			continue
		}
		holder := c.holder[f.Key]
		plan.Problems = append(plan.Problems, fmt.Sprintf(
			"%s %s belongs to %s, %s: change one of them", f.Kind, f.Key, holder.owner.ref, holder.over(claim{o, f.claims(), o.created})))
	}
	plan.keepUsedSets()
	slices.Sort(plan.Problems)
	return plan
}
