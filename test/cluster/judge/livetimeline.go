// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"slices"
	"syscall"
	"time"
)

// Epoch is a state of a Service: the change that led to it, and what clients see of it.
type Epoch struct {
	Change string
	// Begin and Written are before the first and after the last write that led to it; Served is when each
	// side certainly had it.
	Begin, Written time.Time
	Served         [2]time.Time
	// Seen is the result of each probe, on each side.
	Seen [2]map[Probe]Outcome
	// Between admits what may be seen in between, besides what is seen before and after.
	Between func(Observation) bool
}

// Timeline is the epochs of a Service, in order. Until a side certainly has an epoch, it may still have the one
// before.
type Timeline []*Epoch

// possible returns the first and the last epoch that a connection may have seen.
func (t Timeline) possible(side int, s *Sighting) (first, last int) {
	for first+1 < len(t) && !s.Begin.Before(t[first+1].Served[side]) {
		first++
	}
	last = first
	for last+1 < len(t) && !s.End.Before(t[last+1].Begin) {
		last++
	}
	return first, last
}

// allows reports whether one of the epochs explains what was seen. The reply to an unconnected UDP socket has
// no name if the Service is removed before it arrives.
func (t Timeline) allows(side int, s *Sighting) bool {
	first, last := t.possible(side, s)
	for i := first; i <= last; i++ {
		if slices.Contains(t[i].Seen[side][s.Probe], s.Observation) {
			return true
		}
	}
	for i := first + 1; i <= last; i++ {
		if between := t[i].Between; between != nil && between(s.Observation) {
			return true
		}
		gone := len(t[i].Seen[side][s.Probe].backends()) == 0
		if s.ended() && (t[i].Between != nil || t[first:i+1].lost(side, s.Probe)) {
			return true
		}
		if s.Probe.Protocol == "udp" && s.Result == misnamed && gone {
			return true
		}
		if t[i].isGone(side, s.Probe) && (s.Result == refused || s.Result == unreachable && s.Probe.Socket == "plain") {
			return true
		}
	}
	return false
}

// isGone reports whether a ClusterIP has become unused. A Service's ports are removed before its address: for
// some microseconds they are refused like any other port of it, and a connected UDP socket's datagrams belong
// to nobody.
func (e *Epoch) isGone(side int, p Probe) bool {
	return p.To == "clusterIP" && slices.Contains(e.Seen[side][p], Observation{Result: denied})
}

// lost reports whether the last epoch lacks a backend of an earlier one.
func (t Timeline) lost(side int, p Probe) bool {
	left := t[len(t)-1].Seen[side][p].backends()
	for _, e := range t[:len(t)-1] {
		for _, backend := range e.Seen[side][p].backends() {
			if !slices.Contains(left, backend) {
				return true
			}
		}
	}
	return false
}

// ended reports whether a connected UDP socket was aborted with its backend (R29).
func (s *Sighting) ended() bool {
	return s.Probe.Protocol == "udp" && s.Probe.Socket == "plain" && (s.Result == syscall.ECONNABORTED.Error() || s.Result == syscall.EDESTADDRREQ.Error())
}

// check returns what none of the epochs explains.
func (t Timeline) check(side int, seen []Sighting) (failures []string) {
	for i := range seen {
		s := &seen[i]
		if t.allows(side, s) {
			continue
		}
		first, last := t.possible(side, s)
		text := s.String()
		for _, e := range t[first : last+1] {
			text += fmt.Sprintf("\n\t%q, begun %s, certain %s, allows %v", e.Change,
				e.Begin.Format("05.000"), e.Served[side].Format("05.000"), e.Seen[side][s.Probe])
		}
		failures = append(failures, text)
	}
	return failures
}

// delay returns how long after the last write of an epoch clients still saw the one before, and how long after
// the first write they first saw the new one; negative: unknown.
func (t Timeline) delay(i, side int, seen []Sighting) (old, new time.Duration) {
	old, new = -1, -1
	before, after := t[i-1], t[i]
	for k := range seen {
		s := &seen[k]
		first, last := t.possible(side, s)
		if first != i-1 || last != i {
			continue
		}
		was := slices.Contains(before.Seen[side][s.Probe], s.Observation)
		is := slices.Contains(after.Seen[side][s.Probe], s.Observation)
		switch {
		case was && !is && s.Begin.After(after.Begin):
			old = max(old, s.Begin.Sub(after.Written), 0)
		case is && !was && (new < 0 || s.End.Sub(after.Begin) < new):
			new = max(s.End.Sub(after.Begin), 0)
		}
	}
	return old, new
}

// resultOneOf admits observations with these results.
func resultOneOf(results ...string) func(Observation) bool {
	return func(o Observation) bool { return slices.Contains(results, o.Result) }
}
