// SPDX-License-Identifier: Apache-2.0

package rates

import (
	"strings"
	"testing"

	"beeline.io/beeline/bench/stat"
)

// A goal is kept or missed only by the whole interval.
func TestRateGoal(t *testing.T) {
	most, least := goal{most: 1.25}, goal{least: 4.2}
	for _, c := range []struct {
		goal goal
		low  float64
		high float64
		sure float64
		want string
	}{
		{most, 1.1, 1.2, 0.98, "kept"}, {most, 1.3, 1.4, 0.98, "missed"}, {most, 1.2, 1.3, 0.98, "not decided"}, {most, 1.1, 1.2, 0.5, "not decided"},
		{least, 4.3, 5, 0.98, "kept"}, {least, 3, 4, 0.98, "missed"}, {least, 4, 5, 0.98, "not decided"}, {goal{}, 1, 1, 0.98, ""},
	} {
		got := c.goal.verdict(stat.Interval{Median: (c.low + c.high) / 2, Low: c.low, High: c.high, Confidence: c.sure})
		if !strings.HasSuffix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%+v, %g to %g: %q, want %q", c.goal, c.low, c.high, got, c.want)
		}
	}
}
