// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// look probes both sides and compares them; before is the result without session affinity.
func (l *live) look(t *testing.T, e *Epoch, s *Subject, probes []Probe, before map[Probe]*Verdict) map[Probe]*Verdict {
	t.Helper()
	ctx := t.Context()
	must(t, l.pair.forgetFlows())
	j := &Judge{Pair: l.pair, Differences: l.differences} // without the clients' earlier backends
	verdicts := make([]*Verdict, len(probes))
	raw := make([][2]Outcome, len(probes))
	var cases []*Case
	number := map[*Case]int{}
	for i, p := range probes {
		c := &Case{ID: "live.", Scenario: s.Scenario, Probe: p, Sticky: s.Sticky}
		number[c] = i
		cases = append(cases, c)
	}
	one := func(c *Case, e effort) (err error) {
		i := number[c]
		verdicts[i], err = j.judge(ctx, c, e, func(id string) *Verdict {
			if id == c.ID {
				return verdicts[i]
			}
			return before[c.Probe]
		})
		if err != nil {
			return err
		}
		raw[i] = [2]Outcome{verdicts[i].KubeProxy, verdicts[i].Beeline}
		if s.Sticky {
			raw[i], err = j.ask(ctx, c, c.Probe, effort{max(e.patience, longSilence), 0})
		}
		return err
	}
	judge := func(cases []*Case, e effort) error {
		return inParallel(atOnce, byClient(cases), func(cases []*Case) error {
			for _, c := range cases {
				if err := one(c, e); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for _, e := range []effort{enough, {shortSilence, 20}, {lastSilence, 20}} {
		must(t, judge(cases, e))
		cases = slices.DeleteFunc(cases, func(c *Case) bool { return verdicts[number[c]].Same() })
		if len(cases) == 0 {
			break
		}
		must(t, l.pair.forgetFlows())
	}
	e.Seen = [2]map[Probe]Outcome{{}, {}}
	all := map[Probe]*Verdict{}
	for i, v := range verdicts {
		all[probes[i]] = v
		e.Seen[0][probes[i]], e.Seen[1][probes[i]] = raw[i][0], raw[i][1]
		if !v.Same() {
			t.Errorf("after %q: %+v: kube-proxy %v; Beeline %v; want %v", e.Change, probes[i], v.KubeProxy, v.Beeline, v.Expected)
		}
	}
	return all
}

// hold makes a connection for each probe by TCP with an answer, and a connected UDP socket, too, if wanted.
func (l *live) hold(t *testing.T, s *Subject, e *Epoch, before string, udp bool) (streams, datagrams []*Held) {
	t.Helper()
	for i, side := range l.pair.Sides {
		for probe, outcome := range e.Seen[i] {
			if len(outcome.backends()) == 0 || probe.Socket != "plain" || probe.Protocol == "udp" && !udp {
				continue
			}
			held, err := side.hold(t.Context(), &s.Scenario, []Probe{probe}, before)
			for _, h := range held {
				t.Cleanup(func() { h.conn.Close() })
			}
			must(t, err)
			if probe.Protocol == "udp" {
				datagrams = append(datagrams, held...)
			} else {
				streams = append(streams, held...)
			}
		}
	}
	return streams, datagrams
}

// check checks connections made before a change, and closes them.
func check(t *testing.T, rule, want string, held []*Held) {
	t.Helper()
	for _, h := range held {
		defer h.conn.Close()
	}
	moved, all := 0, 0
	for _, h := range held {
		var err error
		switch {
		case want == lives:
			err = h.lives(t.Context(), lastSilence)
		case want == ends && h.side.Name == "Beeline":
			err = h.ends(t.Context())
		case want == ends:
			if all++; h.lives(t.Context(), longSilence) != nil {
				moved++
			}
		}
		if err != nil {
			t.Errorf("%s: %v", rule, err)
			return // one may have taken long
		}
	}
	if want == ends {
		t.Logf("%[2]d of %[1]d connected UDP sockets on the side of kube-proxy have left their backend", all, moved)
	}
}

// logDelays logs how fast each side was. These are figures and no verdicts.
func (l *live) logDelays(t *testing.T, timeline Timeline, seen [2][]Sighting) {
	t.Helper()
	word := func(d time.Duration) string {
		if d < 0 {
			return "-"
		}
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	for i := 1; i < len(timeline); i++ {
		e := timeline[i]
		text := fmt.Sprintf("%-40s writes %4d ms", e.Change, e.Written.Sub(e.Begin).Milliseconds())
		for _, side := range []int{1, 0} {
			old, new := timeline.delay(i, side, seen[side])
			if new >= 0 {
				l.delays[side] = append(l.delays[side], new)
			}
			text += fmt.Sprintf("; %s: new first seen after %s, old last seen after %s", []string{"kube-proxy", "Beeline"}[side], word(new), word(old))
		}
		t.Log(text)
	}
}
