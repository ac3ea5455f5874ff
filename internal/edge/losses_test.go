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
	for name, want := range map[string]bool{
		"rx_queue_0_xdp_tx_errors": true, "tx_queue_0_xdp_xmit_errors": true, "rx0_xdp_tx_drops": true, "rx_xdp_tx_full": true, "tx_xdp_err": true,
		"rx_queue_0_xdp_drops": false, "rx_queue_0_xdp_tx": false, "rx_queue_0_drops": false, "tx_queue_errors": false,
	} {
		if isXDPLoss(name) != want {
			t.Errorf("%s: %t", name, !want)
		}
	}
}
