// SPDX-License-Identifier: Apache-2.0

// Package seed has the seeds that random tests start from. `make test` takes them from the commit (BEELINE_SEED), so
// that each commit tries something else, and the same commit the same.
package seed

import (
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Variable is the environment variable with the seed of all tests that have none by a flag: a number that is not 0.
const Variable = "BEELINE_SEED"

// A Flag is a flag of a test's program that has a seed.
type Flag struct {
	name string
	set  bool // by the command line

	mu    sync.Mutex
	value uint64
}

// New defines a flag. usage describes what is drawn.
func New(name, usage string) *Flag {
	f := &Flag{name: name}
	flag.Var(f, name, usage+"; 0: from the clock; by default as "+Variable+" says, or 1")
	return f
}

// String and Set implement flag.Value.
func (f *Flag) String() string {
	if f == nil || !f.set {
		return ""
	}
	return strconv.FormatUint(f.value, 10)
}

func (f *Flag) Set(text string) (err error) {
	f.value, err = strconv.ParseUint(text, 10, 64)
	f.set = err == nil
	return err
}

// IsSet reports whether the command line has the flag.
func (f *Flag) IsSet() bool { return f.set }

// Of returns the seed for a test, and logs the flag that repeats it. It returns the same to all tests of a program.
func (f *Flag) Of(t testing.TB) uint64 {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.set {
		f.value = Default(t)
	}
	if f.value == 0 {
		f.value = uint64(time.Now().UnixNano())
	}
	t.Logf("-%s=%d", f.name, f.value)
	return f.value
}

// Default returns the seed for a test without a flag. It is read in the test, not before, so that go test notices that
// it has changed.
func Default(t testing.TB) uint64 {
	t.Helper()
	text := os.Getenv(Variable)
	if text == "" {
		return 1
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 {
		t.Fatalf("%s=%q: give a number that is not 0", Variable, text)
	}
	return n
}

// Choose returns which of several variants a test runs in if it has time for one only: a number from 0 to variants - 1
// that depends on its name and on Default.
func Choose(t testing.TB, variants int) int {
	t.Helper()
	return choose(Default(t), t.Name(), variants)
}

func choose(seed uint64, name string, variants int) int {
	h := fnv.New64a()
	fmt.Fprint(h, seed, name)
	x := h.Sum64() // its low bits hardly depend on the first letters
	return int((x ^ x>>32) % uint64(variants))
}
