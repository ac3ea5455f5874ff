// SPDX-License-Identifier: Apache-2.0

package hoststack

import (
	"testing"
	"time"
)

// TestWithin: a process that cannot be read delays a look once, and is read again when it can be.
func TestWithin(t *testing.T) {
	const pid = -1 // no process
	release, dropped := make(chan int), make(chan int, 1)
	read := func() (int, error) {
		return within(pid, func() int { return <-release }, func(n int) { dropped <- n })
	}
	if _, err := read(); err == nil {
		t.Fatal("a reading that hangs returned")
	}
	begun := time.Now()
	if _, err := read(); err == nil || time.Since(begun) > maxPatience/2 {
		t.Errorf("the next one: %v, after %v, want an error at once", err, time.Since(begun))
	}
	if _, err := within(pid-1, func() int { return 1 }, func(int) {}); err != nil {
		t.Errorf("another process: %v", err)
	}
	release <- 7
	if n := <-dropped; n != 7 {
		t.Errorf("%d was dropped", n)
	}
	go func() { release <- 8 }()
	if n, err := read(); n != 8 || err != nil {
		t.Errorf("%d, %v when it can be read again", n, err)
	}
}
