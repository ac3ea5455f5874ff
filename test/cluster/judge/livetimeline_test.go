// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"syscall"
	"testing"
	"time"
)

// A connected UDP socket may end if a backend is lost that it could have had, or if the Service was incomplete
// in between, and otherwise not (R29).
func TestTimelineAllowsEnds(t *testing.T) {
	t.Parallel()
	const side = 1
	probe := Probe{From: "a1", To: "clusterIP", Family: "v4", Protocol: "udp", Port: "known", Socket: "plain"}
	begin := time.Now()
	epoch := func(n int, between func(Observation) bool, backends ...string) *Epoch {
		at := begin.Add(time.Duration(n) * time.Second)
		e := &Epoch{Begin: at, Written: at, Served: [2]time.Time{at.Add(100 * time.Millisecond), at.Add(100 * time.Millisecond)}, Between: between}
		var outcome Outcome
		for _, backend := range backends {
			outcome.add(Observation{answered, backend, "own"})
		}
		e.Seen[side] = map[Probe]Outcome{probe: outcome}
		return e
	}
	seen := func(result string, from, to float64) *Sighting {
		second := func(f float64) time.Time { return begin.Add(time.Duration(f * float64(time.Second))) }
		return &Sighting{probe, second(from), second(to), Observation{Result: result}}
	}
	aborted, unconnected := syscall.ECONNABORTED.Error(), syscall.EDESTADDRREQ.Error()
	for what, c := range map[string]struct {
		timeline Timeline
		sighting *Sighting
		want     bool
	}{
		"a backend is lost":                {Timeline{epoch(0, nil, "a2", "b1"), epoch(1, nil, "a2")}, seen(aborted, 0.9, 1.05), true},
		"a backend is lost, a write fails": {Timeline{epoch(0, nil, "a2", "b1"), epoch(1, nil, "a2")}, seen(unconnected, 0.9, 1.05), true},
		"all are lost":                     {Timeline{epoch(0, nil, "a2"), epoch(1, nil)}, seen(aborted, 0.9, 1.05), true},
		"a backend is added":               {Timeline{epoch(0, nil, "a2"), epoch(1, nil, "a2", "b1")}, seen(aborted, 0.9, 1.05), false},
		"the same backends":                {Timeline{epoch(0, nil, "a2"), epoch(1, nil, "a2")}, seen(aborted, 0.9, 1.05), false},
		"the same, and none in between":    {Timeline{epoch(0, nil, "a2"), epoch(1, refusedBetween, "a2")}, seen(aborted, 0.9, 1.05), true},
		"no change":                        {Timeline{epoch(0, nil, "a2", "b1"), epoch(1, nil, "a2")}, seen(aborted, 0.5, 0.6), false},
		"long after the loss":              {Timeline{epoch(0, nil, "a2", "b1"), epoch(1, nil, "a2")}, seen(aborted, 1.5, 1.6), false},
		"lost, and back before it is seen": {Timeline{epoch(0, nil, "a2"), epoch(1, nil, "b1"), epoch(2, nil, "a2", "b1")}, seen(aborted, 0.9, 2.05), true},
	} {
		if got := c.timeline.allows(side, c.sighting); got != c.want {
			t.Errorf("%s: an end is allowed: %v, want %v", what, got, c.want)
		}
	}
}

// An endpoint may answer in between if it serves in one of the states.
func TestServing(t *testing.T) {
	t.Parallel()
	s := base(1, "a1", "a2", "a3", "b1", "b2")
	for i, state := range []string{"ready", "draining", "terminating", "not ready", "published"} {
		s.Endpoints[i].State = state
	}
	if got := s.serving(); len(got) != 3 || got[0] != "a1" || got[1] != "a2" || got[2] != "b2" {
		t.Errorf("%v serve, want a1, a2, b2", got)
	}
}
