// SPDX-License-Identifier: Apache-2.0

package maglev

// group holds the claimants of one weight. They have their turns at the same times, turn/weight.
type group struct {
	weight  uint64
	turn    uint64
	members []*claimant
}

// before orders groups by time, then by descending weight.
func (g *group) before(o *group) bool {
	a, b := g.turn*o.weight, o.turn*g.weight
	return a < b || a == b && g.weight > o.weight
}

// queue is a heap of groups; the first has the next turn.
type queue []*group

// newQueue starts with the second turn of each claimant.
func newQueue(all []claimant) queue {
	byWeight := [256]*group{}
	var q queue
	for i := range all {
		c := &all[i]
		if byWeight[c.weight] == nil {
			byWeight[c.weight] = &group{weight: uint64(c.weight), turn: 2}
			q = append(q, byWeight[c.weight])
		}
		byWeight[c.weight].members = append(byWeight[c.weight].members, c)
	}
	for i := len(q)/2 - 1; i >= 0; i-- {
		q.sink(i)
	}
	return q
}

// next ends the turn of the first group.
func (q queue) next() {
	q[0].turn++
	q.sink(0)
}

func (q queue) sink(i int) {
	for {
		first := 2*i + 1
		if first >= len(q) {
			return
		}
		if second := first + 1; second < len(q) && q[second].before(q[first]) {
			first = second
		}
		if !q[first].before(q[i]) {
			return
		}
		q[i], q[first] = q[first], q[i]
		i = first
	}
}
