// SPDX-License-Identifier: Apache-2.0

package wakeup

import (
	"testing"
	"time"
)

// A pending signal is kept, and further ones do not accumulate.
func TestSignal(t *testing.T) {
	s := NewSignal()
	if len(s) != 0 {
		t.Error("a new signal has been sent")
	}
	for range 3 {
		s.Send() // must not block
	}
	<-s
	select {
	case <-s:
		t.Error("signals queue")
	default:
	}
}

func TestBackoff(t *testing.T) {
	b := Backoff{First: time.Second, Most: 5 * time.Second}
	next := func(want time.Duration) {
		t.Helper()
		if got := b.Next(); got != want || b.Delay() != want {
			t.Errorf("the next attempt is after %v (Delay: %v), want %v", got, b.Delay(), want)
		}
	}
	if b.Delay() != 0 {
		t.Error("a delay before a failure")
	}
	for _, want := range []time.Duration{1, 2, 4, 5, 5} {
		next(want * time.Second)
	}
	b.Most = 3 * time.Second
	next(3 * time.Second)
	if b.Reset(); b.Delay() != 0 {
		t.Error("a delay after a success")
	}
	next(time.Second)
}
