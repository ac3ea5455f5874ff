// SPDX-License-Identifier: Apache-2.0

// Package wakeup wakes loops: at once with a Signal, or after a delay, which with a Backoff grows.
package wakeup

import (
	"context"
	"time"
)

// A Signal wakes the loop that receives from it. Signals do not queue: the loop then rereads the state, so one
// is enough.
type Signal chan struct{}

// NewSignal returns a signal that has not been sent.
func NewSignal() Signal { return make(Signal, 1) }

// Send sends the signal without blocking.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Wait waits for the signal, and returns false if ctx ended first.
func (s Signal) Wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-s:
		return true
	}
}

// Sleep sleeps for d, and returns false if ctx ended first.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// A Backoff computes the delay after each failure: First, then twice the previous delay, up to Most. Most may
// change between calls.
type Backoff struct {
	First, Most time.Duration
	delay       time.Duration
}

// Next returns the delay after a failure.
func (b *Backoff) Next() time.Duration {
	b.delay = min(max(2*b.delay, b.First), b.Most)
	return b.delay
}

// Reset resets the delay after a success.
func (b *Backoff) Reset() { b.delay = 0 }

// Delay returns the last result of Next, or 0 after a success.
func (b *Backoff) Delay() time.Duration { return b.delay }
