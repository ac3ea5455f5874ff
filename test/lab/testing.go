// SPDX-License-Identifier: Apache-2.0

package lab

import "os"

// TB is the part of testing.TB that New uses; declaring it here keeps the testing package out of the beeline
// binary.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
	Skipf(format string, args ...any)
}

// New creates a temporary lab with a random name for a test and takes it down at the test's end. It also
// removes what killed tests have left. Without root the test is skipped. TestMain has to call [Main].
func New(t TB) *Lab {
	t.Helper()
	return NewOf(t, Shape{})
}

// NewOf is New for a lab with a certain shape.
func NewOf(t TB, shape Shape) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skipf("the lab needs root: network namespaces, mounts and cgroups")
	}
	l, err := Up(Config{Temporary: true, Shape: shape})
	if err != nil {
		t.Fatalf("making a lab: %v", err)
	}
	t.Cleanup(func() {
		if err := l.Down(); err != nil {
			t.Errorf("taking lab %s down: %v", l.Name, err)
		}
	})
	return l
}
