// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"beeline.io/beeline/internal/report/condition"
)

// owner is an object that has or requests frontends.
type owner struct {
	ref     Ref
	created time.Time
	// wanted is the plan if no other object existed.
	wanted *Plan
	// plan is wanted without the keys that other objects hold; the same pointer if there are none.
	plan *Plan
}

// claim is one owner's claim to one key. Claims of equal precedence compare equal.
type claim struct {
	owner   *owner
	kind    FrontendKind
	created time.Time
}

// compare orders claims by precedence: lower kind, then older object (for Pods with the same hostPort: newer,
// R33), then the order of Refs.
func (c claim) compare(o claim) int {
	age := c.created.Compare(o.created)
	if c.kind == HostPort {
		age = -age
	}
	return cmp.Or(cmp.Compare(c.kind, o.kind), age, c.owner.ref.Compare(o.owner.ref))
}

// over returns why a claim precedes another.
func (c claim) over(o claim) string {
	switch {
	case c.kind != o.kind:
		return fmt.Sprintf("as its %s", c.kind)
	case c.created.After(o.created):
		return "which is newer"
	case c.created.Before(o.created):
		return "which is older"
	}
	return "which has the same age and comes first by name"
}

// claims records the holder of each address and the other claims to it. The state depends only on the current
// claims, not on their order of arrival.
type claims struct {
	// holder maps each key to its first claim.
	holder map[FrontendKey]claim
	// rivals holds all claims to keys with more than one, in order of precedence.
	rivals map[FrontendKey][]claim
	// contested maps each key that had rivals since the last settle to its previous holder.
	contested map[FrontendKey]claim
}

func newClaims() claims {
	return claims{map[FrontendKey]claim{}, map[FrontendKey][]claim{}, map[FrontendKey]claim{}}
}

// replace withdraws an owner's claims and adds those of its new plan; with wanted nil it only withdraws.
func (c *claims) replace(o *owner, wanted *Plan, created time.Time) {
	if o.wanted != nil {
		for i := range o.wanted.Frontends {
			c.withdraw(o.wanted.Frontends[i].Key, o)
		}
	}
	// Drop the monotonic clock and location, which differ between equal times.
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

// settle returns the owners that gained or lost a key since the last settle because of other owners' claims.
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

// award returns the part of an owner's wanted plan whose keys it holds.
func (c *claims) award(o *owner) *Plan {
	lost := func(f Frontend) bool { return c.holder[f.Key].owner != o }
	if o.wanted == nil || !slices.ContainsFunc(o.wanted.Frontends, lost) {
		return o.wanted
	}
	plan := &Plan{
		Sets:        slices.Clone(o.wanted.Sets),
		TableSize:   o.wanted.TableSize,
		Retained:    o.wanted.Retained,
		Problems:    slices.Clone(o.wanted.Problems),
		HealthPorts: o.wanted.HealthPorts,
		Created:     o.created,
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
		plan.problem(condition.AddressTaken.New(
			"%s %s belongs to %s, %s", f.Kind, f.Key, holder.owner.ref, holder.over(claim{o, f.claims(), o.created})))
	}
	plan.keepUsedSets()
	plan.Problems = plan.Problems.Sort()
	return plan
}
