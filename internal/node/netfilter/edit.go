// SPDX-License-Identifier: Apache-2.0

package netfilter

import "slices"

// A chainChange is how the rules of a chain have changed.
type chainChange struct {
	edits  []edit
	reread bool // the edits do not tell
}

// An edit is a rule that was added or removed. Rules have handles of their own, and never change or move.
type edit struct {
	removed bool
	handle  uint64
	text    string // its expressions
	// after is the handle of the rule before; 0: it was the first or, with last, the last one when it was added.
	after uint64
	last  bool
}

// mostEdits of a chain are made one by one: each looks at all rules. With more of them the chain is read again.
const mostEdits = 256

func (c *chainChange) add(reread bool, edits ...edit) {
	c.edits = append(c.edits, edits...)
	if c.reread = c.reread || reread || len(c.edits) > mostEdits; c.reread {
		c.edits = nil
	}
}

// apply returns the rules of a chain after a change; ok: they are known. Edits that the rules have already are no
// change: the rules may have been read after them.
//
// The kernel does not tell where a rule was added that was the first or the last one then. Only a rule that has
// replaced the first one looks as if it was added at the end (nf_tables_rule_notify).
func (c *chainChange) apply(before []rule) (rules []rule, ok bool) {
	if c.reread {
		return nil, false
	}
	rules = slices.Clone(before)
	with := func(handle uint64) int {
		return slices.IndexFunc(rules, func(r rule) bool { return r.handle == handle })
	}
	firstGone := false
	for _, e := range c.edits {
		at := with(e.handle)
		switch {
		case e.removed && at >= 0:
			firstGone = firstGone || at == 0
			rules = slices.Delete(rules, at, at+1)
			continue
		case e.removed || at >= 0:
			continue
		case e.after != 0:
			if at = with(e.after) + 1; at == 0 {
				return nil, false
			}
		case len(rules) == 0 || !e.last:
			at = 0
		case firstGone:
			return nil, false
		default:
			at = len(rules)
		}
		rules = slices.Insert(rules, at, rule{text: e.text, handle: e.handle, name: nameOf(e.handle)})
	}
	return rules, true
}
