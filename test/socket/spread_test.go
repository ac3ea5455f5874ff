// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"slices"
	"testing"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/lab"
)

// choices makes n connections to a Service, one after the other, and returns for each which of the pods
// answered, as an index.
func choices(t *testing.T, n int, from *lab.Host, f family, service uint8, pods []*lab.Host) []int {
	t.Helper()
	all := make([]int, n)
	for i := range all {
		answer, err := ask(from, f, f.clusterIP(service))
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		all[i] = slices.IndexFunc(pods, func(h *lab.Host) bool { return h.Name == answer.Pod })
		if all[i] < 0 {
			t.Fatalf("connection %d: %s answers, but is no backend", i, answer.Pod)
		}
	}
	return all
}

func count(choices []int, values int) []int {
	counts := make([]int, values)
	for _, c := range choices {
		counts[c]++
	}
	return counts
}

func even(n int) []float64 { return slices.Repeat([]float64{1}, n) }

// R10: connections spread evenly over the endpoints, and a choice does not depend on the previous one. 2,000
// connections of each family, each check at alpha.
func TestSpreadIsEven(t *testing.T) {
	w := startWorld(t, "node-a")
	const pods = "a2 a3 b1 b2"
	w.apply("web", objects(w.web("web", 1, pods))...)
	inEachFamily(t, func(t *testing.T, f family) {
		made := choices(t, 2000, w.Host("a1"), f, 1, w.hosts(pods))
		if err := checkShares(count(made, 4), even(4)); err != nil {
			t.Error(err)
		}
		pairs := make([]int, 0, len(made)/2)
		for i := 0; i+1 < len(made); i += 2 {
			pairs = append(pairs, 4*made[i]+made[i+1])
		}
		if err := checkShares(count(pairs, 16), even(16)); err != nil {
			t.Errorf("choices depend on each other: of pairs, %v", err)
		}
	})
}

// Endpoints get connections by the weight of their slices. The second case has a bias of 3:2, which the check
// must find if the spread is assumed to be even. 3,000 connections over all families: the bias then gives a
// chi-squared of 120 on average where the limit is 24, and is missed with a probability below 1e-8.
func TestSpreadFollowsWeights(t *testing.T) {
	w := startWorld(t, "node-a")
	for i, c := range []struct {
		name           string
		weight1, other string
		shares         []float64
	}{
		{"heavy", "255", "85", []float64{3, 1}},
		{"planted", "3", "2", []float64{3, 2}},
	} {
		t.Run(c.weight1+" to "+c.other, func(t *testing.T) {
			n := uint8(i + 1)
			s, slices := w.web(c.name, n, "a2")
			_, more := w.web(c.name, n, "b1")
			for i := range slices {
				slices[i].Annotations = map[string]string{service.AnnotationWeight: c.weight1}
				more[i].Annotations = map[string]string{service.AnnotationWeight: c.other}
				more[i].Name += "-more"
			}
			w.apply(c.name, objects(s, append(slices, more...))...)
			var all []int
			inEachFamily(t, func(t *testing.T, f family) {
				made := choices(t, 1000, w.Host("a1"), f, n, w.hosts("a2 b1"))
				if err := checkShares(count(made, 2), c.shares); err != nil {
					t.Error(err)
				}
				all = append(all, made...)
			})
			if err := checkShares(count(all, 2), c.shares); err != nil {
				t.Error(err)
			}
			if checkShares(count(all, 2), even(2)) == nil {
				t.Errorf("%v passes for an even spread: the check finds no bias", count(all, 2))
			}
		})
	}
}

// An endpoint of weight 0 takes no new connections.
func TestWeightZeroDrains(t *testing.T) {
	w := startWorld(t, "node-a")
	s, slices := w.web("web", 1, "b1")
	_, drained := w.web("web", 1, "b2")
	for _, slice := range drained {
		slice.Name += "-drained"
		slice.Annotations = map[string]string{service.AnnotationWeight: "0"}
	}
	w.apply("web", objects(s, append(slices, drained...))...)
	inEachFamily(t, func(t *testing.T, f family) {
		w.wantMeet(t, "a1", f, f.clusterIP(1), "b1")
	})
}
