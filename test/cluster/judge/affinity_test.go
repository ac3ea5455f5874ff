// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"slices"
	"testing"
)

// Session affinity is judged by whether a client stays with one of the backends that it can reach.
func TestStickiness(t *testing.T) {
	t.Parallel()
	a, b, strange := Observation{answered, "a1", "own"}, Observation{answered, "b1", "own"}, Observation{answered, "b2", "own"}
	both := Outcome{a, b}
	for _, c := range []struct{ now, before, want Outcome }{
		{Outcome{a}, both, Outcome{{Result: sticky}}},
		{Outcome{b}, both, Outcome{{Result: sticky}}},
		{both, both, both},
		{Outcome{strange}, both, Outcome{strange}},
		{Outcome{a}, Outcome{a}, Outcome{a}},
		{Outcome{{Result: refused}}, Outcome{{Result: refused}}, Outcome{{Result: refused}}},
		{Outcome{a, {Result: silence}}, both, Outcome{a, {Result: silence}}},
	} {
		if got := stickiness(c.now, c.before); !slices.Equal(got, c.want) {
			t.Errorf("%v after %v: %v, want %v", c.now, c.before, got, c.want)
		}
	}
}

// A client's first backend is its backend at the Service's other addresses, also when it asks again (R27).
func TestStays(t *testing.T) {
	t.Parallel()
	a, b, c := Observation{answered, "a1", "own"}, Observation{answered, "b1", "own"}, Observation{answered, "b2", "own"}
	all, one := Outcome{a, b, c}, Outcome{b}
	stays, strays := Outcome{{Result: sticky}}, Outcome{{Result: wandering}}
	type meeting struct{ now, before, want Outcome }
	for name, asked := range map[string][]meeting{
		"stays":                             {{Outcome{a}, all, stays}, {Outcome{a}, all, stays}},
		"wanders, and asked again still":    {{Outcome{a}, all, stays}, {Outcome{b}, all, strays}, {Outcome{b}, all, strays}, {Outcome{b}, all, strays}},
		"wanders twice":                     {{Outcome{a}, all, stays}, {Outcome{b}, all, strays}, {Outcome{c}, all, strays}},
		"wanders and comes back":            {{Outcome{a}, all, stays}, {Outcome{b}, all, strays}, {Outcome{a}, all, stays}},
		"wanders after an address of one":   {{Outcome{b}, one, Outcome{b}}, {Outcome{c}, all, strays}, {Outcome{c}, all, strays}},
		"has to leave":                      {{Outcome{a}, all, stays}, {Outcome{b}, Outcome{b, c}, stays}, {Outcome{b}, all, stays}},
		"several, which is no session":      {{Outcome{a, b}, all, Outcome{a, b}}, {Outcome{c}, all, stays}},
		"several after one is no session":   {{Outcome{a}, all, stays}, {Outcome{a, b}, all, Outcome{a, b}}},
		"refused, which is not of interest": {{Outcome{a}, all, stays}, {Outcome{{Result: refused}}, all, Outcome{{Result: refused}}}, {Outcome{b}, all, strays}},
	} {
		for side := range 2 {
			var m meetings
			for i, meeting := range asked {
				question := &Case{Probe: Probe{From: "a2", To: "clusterIP", Port: "known"}, Sticky: true}
				if got := m.stays(side, question, meeting.now, meeting.before); !slices.Equal(got, meeting.want) {
					t.Errorf("%s: side %d, question %d: %v of %v: %v, want %v", name, side, i, meeting.now, meeting.before, got, meeting.want)
				}
			}
		}
	}
}
