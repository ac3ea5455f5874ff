// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
)

const (
	probesEach = 10 // of a scenario
	// How many are drawn for each one that is used: the one with the most pairs of facts that no earlier
	// case has.
	scenarioDraws, probeDraws = 16, 8
)

// Generate makes the cases of n scenarios. The same seed makes the same cases.
func Generate(seed uint64, n int) []*Case {
	random := rand.New(rand.NewPCG(seed, 0))
	seen := new(pairs)
	var all []*Case
	for number := range n {
		var best []*Case
		var bestNew *pairs
		most := -1
		for range scenarioDraws {
			cases, fresh := drawCases(random, drawScenario(random, number), seen)
			if news := fresh.without(seen); news > most {
				best, bestNew, most = cases, fresh, news
			}
		}
		seen.addAll(bestNew)
		all = append(all, best...)
	}
	return all
}

// drawCases draws probes of a scenario, and returns their pairs.
func drawCases(random *rand.Rand, s Scenario, seen *pairs) (cases []*Case, all *pairs) {
	all = new(pairs)
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
			if news := seen.lacks(c.factNumbers(), all); news > bestNew {
				best, bestNew = c, news
			}
		}
		if best == nil {
			continue // a duplicate
		}
		probes = append(probes, best.Probe)
		cases = append(cases, best)
		all.add(best.factNumbers())
		if s.Affinity {
			again := *best
			again.ID, again.Sticky = best.ID+"s", true
			cases = append(cases, &again)
			all.add(again.factNumbers())
		}
	}
	return cases, all
}

// maxFacts is the most facts that there may be, such as "from=pod".
const maxFacts = 512

// pairs is a set of pairs of facts in cases: a bit for each two numbers of facts, the first that of the fact whose name
// is first. There are many more lookups than pairs.
type pairs [maxFacts][maxFacts / 64]uint64

// factNumbers are the numbers of facts, by name and value.
var factNumbers = struct {
	sync.Mutex
	of map[[2]string]uint16
}{of: map[[2]string]uint16{}}

func (c *Case) factNumbers() []uint16 {
	facts := c.Facts()
	numbers := make([]uint16, len(caseFacts))
	factNumbers.Lock()
	defer factNumbers.Unlock()
	for i, name := range caseFacts {
		fact := [2]string{name, facts[name]}
		number, known := factNumbers.of[fact]
		if !known {
			number = uint16(len(factNumbers.of))
			factNumbers.of[fact] = number
		}
		numbers[i] = number
	}
	return numbers
}

func (p *pairs) add(numbers []uint16) {
	for i, a := range numbers {
		for _, b := range numbers[i+1:] {
			p[a][b/64] |= 1 << (b % 64)
		}
	}
}

// lacks is how many pairs of a case are in neither set.
func (p *pairs) lacks(numbers []uint16, other *pairs) (n int) {
	for i, a := range numbers {
		for _, b := range numbers[i+1:] {
			if (p[a][b/64]|other[a][b/64])>>(b%64)&1 == 0 {
				n++
			}
		}
	}
	return n
}

func (p *pairs) addAll(other *pairs) {
	for a := range p {
		for i := range p[a] {
			p[a][i] |= other[a][i]
		}
	}
}

// without is how many pairs are in p and not in other.
func (p *pairs) without(other *pairs) (n int) {
	for a := range p {
		for i := range p[a] {
			n += bits.OnesCount64(p[a][i] &^ other[a][i])
		}
	}
	return n
}

// pick draws one of several; one that is listed twice is drawn twice as often.
func pick[T any](random *rand.Rand, from ...T) T { return from[random.IntN(len(from))] }

func oneIn(random *rand.Rand, n int) bool { return random.IntN(n) == 0 }
