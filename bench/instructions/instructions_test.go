// SPDX-License-Identifier: Apache-2.0

package instructions

import (
	"testing"
)

// Time is a count of instructions only if all take the same.
func TestCommonTime(t *testing.T) {
	for _, c := range []struct {
		addition, division float64
		want               int64 // 0: refused
	}{
		{1.003, 1.001, 1}, {8.02, 8.01, 8}, {1, 1.05, 0}, {0.05, 0.34, 0}, {0.05, 0.05, 0}, {1.5, 1.5, 0}, {0, 0, 0},
	} {
		got, err := commonTime(c.addition, c.division)
		if got.Nanoseconds() != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%g and %g ns: %d ns (%v), want %d", c.addition, c.division, got, err, c.want)
		}
	}
}
