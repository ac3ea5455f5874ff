// SPDX-License-Identifier: Apache-2.0

// Package shared runs functions of bpf/ in the kernel, for tests that compare them with what Go computes alike.
package shared

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf"
)

//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types -type shared_call Shared shared.bpf.c

// Call has the inputs and results of the functions.
type Call = SharedSharedCall

// A Program runs the functions over tables of its own; Maps has these by name.
type Program struct {
	Maps map[string]*ebpf.Map

	t       testing.TB
	program *ebpf.Program
}

// Load loads the program for one test.
func Load(t testing.TB) *Program {
	t.Helper()
	spec, err := LoadShared()
	if err != nil {
		t.Fatal(err)
	}
	spec.Maps[SharedMapFrontends].MaxEntries = 2
	spec.Maps[SharedMapFrontendRows].MaxEntries = 2
	spec.Maps[SharedMapFrontendListRows].MaxEntries = 2
	spec.Maps[SharedMapReservedPorts].MaxEntries = 2
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return &Program{c.Maps, t, c.Programs[SharedProgBeelineShared]}
}

// Run runs all functions on the inputs of a call, and sets its results.
func (p *Program) Run(c *Call) {
	p.t.Helper()
	c.Done = 0
	calls := p.Maps[SharedMapSharedCalls]
	err := calls.Put(uint32(0), c)
	if err == nil {
		_, err = p.program.Run(&ebpf.RunOptions{Data: make([]byte, 14)}) // an Ethernet header
	}
	if err == nil {
		err = calls.Lookup(uint32(0), c)
	}
	if err == nil && c.Done == 0 {
		err = fmt.Errorf("the program did not run to its end")
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// Random returns random numbers, and prints the seed if the test fails.
func Random(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}
