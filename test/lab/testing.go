// SPDX-License-Identifier: Apache-2.0

package lab

import "beeline.io/beeline/test/needs"

// TB is the part of testing.TB that New uses; declaring it here keeps the testing package out of the beeline
// binary.
type TB interface {
	needs.TB
	Cleanup(func())
	Errorf(format string, args ...any)
}

// New creates a temporary lab with a random name for a test and takes it down at the test's end. It also
// removes what killed tests have left. Without root the test fails. TestMain has to call [Main].
func New(t TB) *Lab {
	t.Helper()
	return NewOf(t, Shape{})
}

// NewOf is New for a lab with a certain shape.
func NewOf(t TB, shape Shape) *Lab {
	t.Helper()
	needs.Root(t)
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
