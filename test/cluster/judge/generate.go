// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
)

const (
	probesEach = 10 // of a scenario
	// How many are drawn for each one that is used: the one with the most pairs of facts that no earlier
	// case has.
	scenarioDraws, probeDraws = 6, 8
)

// Generate makes the cases of n scenarios. The same seed makes the same cases.
func Generate(seed uint64, n int) []*Case {
	random := rand.New(rand.NewPCG(seed, 0))
	seen := pairs{}
	var all []*Case
	for number := range n {
		var best []*Case
		var bestNew pairs
		for range scenarioDraws {
			cases, fresh := drawCases(random, drawScenario(random, number), seen)
			if best == nil || len(fresh) > len(bestNew) {
				best, bestNew = cases, fresh
			}
		}
		maps.Copy(seen, bestNew)
		all = append(all, best...)
	}
	return all
}

// drawCases draws probes of a scenario, and returns which pairs they are the first to have.
func drawCases(random *rand.Rand, s Scenario, seen pairs) (cases []*Case, fresh pairs) {
	fresh = pairs{}
	var probes []Probe
	for i := range probesEach {
		var best *Case
		bestNew := -1
		var client *Probe
		if s.Affinity && i%2 == 1 && len(probes) > 0 {
			client = &probes[len(probes)-1]
		}
		for range probeDraws {
			c := &Case{ID: fmt.Sprintf("%d.%d", s.Number, i), Scenario: s, Probe: drawProbe(random, &s, client)}
			if slices.Contains(probes, c.Probe) {
				continue
			}
			if news := c.newPairs(seen, fresh); news > bestNew {
				best, bestNew = c, news
			}
		}
		if best == nil {
			continue // a duplicate
		}
		probes = append(probes, best.Probe)
		cases = append(cases, best)
		fresh.add(best)
		if s.Affinity {
			again := *best
			again.ID, again.Sticky = best.ID+"s", true
			cases = append(cases, &again)
			fresh.add(&again)
		}
	}
	return cases, fresh
}

// pairs are pairs of facts in cases, as their numbers.
type pairs map[[2]uint16]bool

// factNumbers are short names of facts such as "from=pod".
var factNumbers = struct {
	sync.Mutex
	of map[[2]string]uint16
}{of: map[[2]string]uint16{}}

func (c *Case) pairs(each func([2]uint16)) {
	facts := c.Facts()
	numbers := make([]uint16, len(caseFacts))
	factNumbers.Lock()
	for i, name := range caseFacts {
		fact := [2]string{name, facts[name]}
		number, known := factNumbers.of[fact]
		if !known {
			number = uint16(len(factNumbers.of))
			factNumbers.of[fact] = number
		}
		numbers[i] = number
	}
	factNumbers.Unlock()
	for i, a := range numbers {
		for _, b := range numbers[i+1:] {
			each([2]uint16{a, b})
		}
	}
}

func (p pairs) add(c *Case) { c.pairs(func(pair [2]uint16) { p[pair] = true }) }

func (c *Case) newPairs(seen, fresh pairs) int {
	count := 0
	c.pairs(func(pair [2]uint16) {
		if !seen[pair] && !fresh[pair] {
			count++
		}
	})
	return count
}

// pick draws one of several; one that is listed twice is drawn twice as often.
func pick[T any](random *rand.Rand, from ...T) T { return from[random.IntN(len(from))] }

func oneIn(random *rand.Rand, n int) bool { return random.IntN(n) == 0 }
