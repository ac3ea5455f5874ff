// SPDX-License-Identifier: Apache-2.0

package edge

// refSet is a set of resources that the edge needs: those that are requested, and those that are no
// longer requested while flows still refer to them.
type refSet[K comparable] struct {
	// known has true for resources that were requested since the last walk of all flows began: they may
	// have flows that the walk has not seen.
	known map[K]bool
}

func (n *refSet[K]) add(all []K) {
	if n.known == nil {
		n.known = make(map[K]bool, len(all))
	}
	for _, k := range all {
		n.known[k] = true
	}
}

// begin begins a walk; asked are the resources that are requested now.
func (n *refSet[K]) begin(asked []K) {
	for k := range n.known {
		n.known[k] = false
	}
	n.add(asked)
}

// end forgets resources that are neither requested nor referred to by flows, and reports whether there were
// any.
func (n *refSet[K]) end(inFlows map[K]struct{}) bool {
	before := len(n.known)
	for k, asked := range n.known {
		if _, ok := inFlows[k]; !ok && !asked {
			delete(n.known, k)
		}
	}
	less := len(n.known) < before
	for k := range inFlows {
		if _, ok := n.known[k]; !ok {
			n.known[k] = false
		}
	}
	return less
}
