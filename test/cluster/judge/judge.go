// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// The time without a reply that counts as silence: at first, where the two nodes differ, and where they still
// do; how many cases run at once, each on both nodes.
const (
	shortSilence = time.Second
	longSilence  = 4 * time.Second
	lastSilence  = 20 * time.Second
	atOnce       = 48
	atOnceAgain  = 8
	writers      = 16
)

// A few cases on which the nodes differ twice may be due to delays on a busy machine, and run once more. More
// than this are no coincidence.
const few = 16

// often makes it a one in 100,000 chance that a backend is reached on neither side in any of the cases by which
// session affinity is judged, and then is the one that the client stays with.
const often = 6

// Verdict is the judge's result for a case.
type Verdict struct {
	*Case
	KubeProxy Outcome
	Beeline   Outcome
	Expected  Outcome // of Beeline, with the rows
	// Rows are the differences that say what kube-proxy did and Beeline does not.
	Rows  []*Difference
	First *Verdict // if the case ran again: the one before
}

// Same reports whether Beeline did what it had to.
func (v *Verdict) Same() bool { return slices.Equal(v.Expected, v.Beeline) }

// Judge runs cases on both nodes of a pair.
type Judge struct {
	Pair        *Pair
	Differences []*Difference

	met meetings
}

// Run creates the Services of the cases, runs them on both nodes, and returns a verdict for each case, in
// order. With an error, it returns those so far.
func (j *Judge) Run(ctx context.Context, cases []*Case) ([]*Verdict, error) {
	if err := j.create(ctx, cases); err != nil {
		return nil, err
	}
	verdicts := map[string]*Verdict{}
	err := j.configurations(ctx, cases, verdicts)
	var list []*Verdict
	for _, c := range cases {
		if v := verdicts[c.ID]; v != nil {
			list = append(list, v)
		}
	}
	return list, err
}

// configurations runs the cases, grouped by configuration of the proxies.
func (j *Judge) configurations(ctx context.Context, cases []*Case, verdicts map[string]*Verdict) error {
	for i, alike := range byProxy(cases) {
		proxy := alike[0].Scenario.Proxy
		if i > 0 || proxy != "" {
			if err := j.Pair.Restart(ctx, proxyConfigs[proxy].options()); err != nil {
				return err
			}
		}
		if err := j.rounds(ctx, alike, verdicts); err != nil {
			return err
		}
	}
	return nil
}

// byProxy groups cases by the configuration of the proxies, the default first.
func byProxy(cases []*Case) [][]*Case {
	groups := map[string][]*Case{}
	for _, c := range cases {
		groups[c.Scenario.Proxy] = append(groups[c.Scenario.Proxy], c)
	}
	var list [][]*Case
	for _, proxy := range slices.Sorted(maps.Keys(groups)) {
		list = append(list, groups[proxy])
	}
	return list
}

// rounds runs the cases without session affinity, and then those with it.
func (j *Judge) rounds(ctx context.Context, cases []*Case, verdicts map[string]*Verdict) error {
	var plain, again []*Case
	for _, c := range cases {
		if c.Sticky {
			again = append(again, c)
		} else {
			plain = append(plain, c)
		}
	}
	for _, round := range [][]*Case{plain, again} {
		if len(round) == 0 {
			continue
		}
		if round[0].Sticky {
			if err := j.switchAffinityOn(ctx, round); err != nil {
				return err
			}
		}
		if err := j.round(ctx, round, verdicts); err != nil {
			return err
		}
	}
	return nil
}

// round runs each case, and again, fewer at once and with more patience, those on which the nodes differ.
func (j *Judge) round(ctx context.Context, cases []*Case, verdicts map[string]*Verdict) error {
	width := atOnce
	for i, e := range []effort{{shortSilence, often}, {longSilence, 60}, {lastSilence, 60}} {
		if err := j.Pair.forgetFlows(); err != nil {
			return err
		}
		if err := j.judgeAll(ctx, cases, verdicts, width, e); err != nil {
			return err
		}
		cases = slices.DeleteFunc(slices.Clone(cases), func(c *Case) bool { return verdicts[c.ID].Same() })
		if i > 0 && len(cases) > few {
			break
		}
		width = atOnceAgain
	}
	return nil
}

// effort is how long to wait for a reply, and how many connections to make for each endpoint.
type effort struct {
	patience time.Duration
	each     int
}

func (j *Judge) judgeAll(ctx context.Context, cases []*Case, verdicts map[string]*Verdict, width int, e effort) error {
	var mu sync.Mutex
	return inParallel(width, byClient(cases), func(cases []*Case) error {
		for _, c := range cases {
			v, err := j.judge(ctx, c, e, func(id string) *Verdict {
				mu.Lock()
				defer mu.Unlock()
				return verdicts[id]
			})
			if err != nil {
				return fmt.Errorf("case %s: %w", c.ID, err)
			}
			mu.Lock()
			verdicts[c.ID] = v
			mu.Unlock()
		}
		return nil
	})
}

// judge runs one case, perhaps again. verdict finds the verdicts so far. Results of the first run still count
// in the second: only silence and a backend that was not reached can have been chance. If Beeline had a client
// wander, that is final, too.
func (j *Judge) judge(ctx context.Context, c *Case, e effort, verdict func(string) *Verdict) (*Verdict, error) {
	v := &Verdict{Case: c, First: verdict(c.ID)}
	var before *Verdict
	if c.Sticky {
		before = verdict(c.ID[:len(c.ID)-1])
	}
	outcomes, err := j.ask(ctx, c, c.Probe, e)
	if err != nil {
		return nil, err
	}
	if v.First != nil && !c.Sticky {
		outcomes[0].addHeard(v.First.KubeProxy)
		outcomes[1].addHeard(v.First.Beeline)
	}
	v.KubeProxy, v.Beeline = outcomes[0], outcomes[1]
	if before != nil {
		v.KubeProxy = j.met.stays(0, c, v.KubeProxy, before.KubeProxy)
		v.Beeline = j.met.stays(1, c, v.Beeline, before.Beeline)
		if v.First != nil && v.First.Beeline.wanders() {
			v.Beeline = v.First.Beeline
		}
	}
	return v, j.expect(ctx, v, before, e)
}

// expect sets what Beeline should do: what kube-proxy does, except for the rows.
func (j *Judge) expect(ctx context.Context, v, before *Verdict, e effort) error {
	c, model := v.Case, v.KubeProxy
	for _, observation := range v.KubeProxy {
		row := differs(j.Differences, c, observation)
		if row == nil || row.As == nil {
			continue
		}
		v.Rows = append(v.Rows, row)
		other := *c
		other.Probe = row.asked(c.Probe)
		outcome, err := j.Pair.Sides[0].askOften(ctx, &other.Scenario, other.Probe, e)
		if err != nil {
			return err
		}
		c, model = &other, outcome
		break
	}
	for _, observation := range model {
		if row := differs(j.Differences, c, observation); row != nil && row.Becomes != nil {
			observation = row.become(c, observation)
			if !slices.Contains(v.Rows, row) {
				v.Rows = append(v.Rows, row)
			}
		}
		v.Expected.add(observation)
	}
	if before != nil && c != v.Case {
		v.Expected = stickiness(v.Expected, before.Expected)
	}
	return nil
}

// ask runs a probe on both sides.
func (j *Judge) ask(ctx context.Context, c *Case, p Probe, e effort) (outcomes [2]Outcome, err error) {
	var errs [2]error
	var asking sync.WaitGroup
	for i, side := range j.Pair.Sides {
		asking.Go(func() { outcomes[i], errs[i] = side.askOften(ctx, &c.Scenario, p, e) })
	}
	asking.Wait()
	return outcomes, errors.Join(errs[:]...)
}

// A client without any reply gives up after so many connections; if some endpoints never answer, only after
// silence. If some connections were answered, so much silence is no coincidence.
const unansweredEnough, silentEnough = 3, 6

// askOften runs a probe often enough to reach each backend.
func (s *Side) askOften(ctx context.Context, scenario *Scenario, p Probe, e effort) (Outcome, error) {
	var outcome Outcome
	silent := 0
	for i := range 2 + e.each*len(scenario.Endpoints) {
		o, err := s.ask(ctx, scenario, p, e.patience)
		if err != nil {
			return nil, fmt.Errorf("%s on the side of %s: %w", p.From, s.Name, err)
		}
		outcome.add(o)
		if o.Result == silence {
			silent++
		}
		unanswered := len(outcome.endpoints()) == 0 && (silent > 0 || !scenario.deaf())
		if i+1 >= unansweredEnough && unanswered || silent >= silentEnough {
			break
		}
	}
	return outcome, nil
}

// scenariosOf are the scenarios of cases, each once.
func scenariosOf(cases []*Case) []*Scenario {
	var list []*Scenario
	seen := map[int]bool{}
	for _, c := range cases {
		if !seen[c.Scenario.Number] {
			seen[c.Scenario.Number] = true
			list = append(list, &c.Scenario)
		}
	}
	return list
}

// inParallel calls f for each of several, width of them at once.
func inParallel[T any](width int, all []T, f func(T) error) error {
	var group sync.WaitGroup
	errs := make([]error, len(all))
	free := make(chan struct{}, width)
	for i, one := range all {
		free <- struct{}{}
		group.Go(func() {
			defer func() { <-free }()
			errs[i] = f(one)
		})
	}
	group.Wait()
	return errors.Join(errs...)
}
