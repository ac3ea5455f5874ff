// SPDX-License-Identifier: Apache-2.0

package healthcheck

import "container/heap"

// schedule holds the waiting targets, the earliest first.
type schedule struct{ queue }

func (s *schedule) add(t *target) {
	if t.at < 0 {
		heap.Push(&s.queue, t)
	}
}

func (s *schedule) remove(t *target) {
	if t.at >= 0 {
		heap.Remove(&s.queue, t.at)
	}
}

// first returns nil if the schedule is empty.
func (s *schedule) first() *target {
	if len(s.queue) == 0 {
		return nil
	}
	return s.queue[0]
}

// queue is a heap.Interface, ordered by due.
type queue []*target

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i, j
}

func (q *queue) Push(x any) {
	t := x.(*target)
	t.at = len(*q)
	*q = append(*q, t)
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	t := (*q)[last]
	(*q)[last] = nil
	*q, t.at = (*q)[:last], -1
	return t
}
