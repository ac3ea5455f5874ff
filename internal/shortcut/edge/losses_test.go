// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"testing"
	"time"
)

// TestLosses: only what was dropped since the edge was attached counts, and it is reported for a while.
func TestLosses(t *testing.T) {
	l, now := losses{before: 5}, time.Now()
	for _, step := range []struct {
		count uint64
		later time.Duration
		want  uint64
	}{{5, 0, 0}, {7, time.Second, 2}, {7, lossShown - time.Second, 2}, {7, time.Second, 0}, {8, time.Second, 3}, {1, time.Second, 1}} {
		now = now.Add(step.later)
		l.note(step.count, now)
		if got := l.shown(now); got != step.want {
			t.Errorf("after %d: %d, want %d", step.count, got, step.want)
		}
	}
}
