// SPDX-License-Identifier: Apache-2.0

// Package needs has what tests need of the machine. It asks the kernel and never the product: a test that skipped on
// the product's word would not notice that the product is wrong about the kernel.
package needs

import (
	"os"
	"sync"
)

// TB is the part of testing.TB that this package uses.
type TB interface {
	Helper()
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Root fails a test that runs without root.
func Root(t TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatalf("this test needs root, for network namespaces, mounts, cgroups or BPF programs: run it as root")
	}
}

// A Feature is something that some kernels lack.
type Feature struct {
	Name string
	// ask reports whether the kernel has it. An error means that it could not find out.
	ask func() (bool, error)
}

func feature(name string, ask func() (bool, error)) *Feature {
	return &Feature{name, sync.OnceValues(ask)}
}

// Kernel skips a test under a kernel that lacks one of the features.
func Kernel(t TB, features ...*Feature) {
	t.Helper()
	for _, f := range features {
		if !Has(t, f) {
			t.Skipf("this kernel has no %s; test/kernels has others", f.Name)
		}
	}
}

// Has reports whether the kernel has a feature.
func Has(t TB, f *Feature) bool {
	t.Helper()
	Root(t)
	has, err := f.ask()
	if err != nil {
		t.Fatalf("cannot find out whether this kernel has %s: %v", f.Name, err)
	}
	return has
}
