// SPDX-License-Identifier: Apache-2.0

package seed

import (
	"fmt"
	"testing"
)

// Each test meets each of its variants within a few commits, and not all tests the same one.
func TestChoose(t *testing.T) {
	const seeds, names, variants = 40, 20, 3
	type variant struct {
		name string
		at   int
	}
	met := map[variant]bool{}
	for seed := range uint64(seeds) {
		chosen := map[int]bool{}
		for n := range names {
			v := variant{fmt.Sprintf("Test%d", n), 0}
			v.at = choose(seed, v.name, variants)
			met[v], chosen[v.at] = true, true
		}
		if len(chosen) < 2 {
			t.Errorf("seed %d: all tests run in variant %v", seed, chosen)
		}
	}
	if len(met) != names*variants {
		t.Errorf("with %d seeds the tests meet %d of their %d variants", seeds, len(met), names*variants)
	}
}

// A flag counts more than the environment.
func TestFlag(t *testing.T) {
	t.Setenv(Variable, "7")
	if got := (&Flag{name: "seed"}).Of(t); got != 7 {
		t.Errorf("by the environment: %d", got)
	}
	byFlag := &Flag{name: "seed"}
	if err := byFlag.Set("5"); err != nil || byFlag.Of(t) != 5 {
		t.Errorf("by the flag: %v, %v", byFlag, err)
	}
	byClock := &Flag{name: "seed"}
	if err := byClock.Set("0"); err != nil {
		t.Fatal(err)
	}
	if first, second := byClock.Of(t), byClock.Of(t); first == 0 || first != second {
		t.Errorf("by the clock: %d, then %d", first, second)
	}
}
