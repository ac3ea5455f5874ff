// SPDX-License-Identifier: Apache-2.0

package hoststack

import (
	"bytes"
	"testing"
	"time"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/test/node"
)

// The part of the host stack has a figure for each side. It fails by itself if a connection is not on rings where it
// should be, or is where it should not.
func TestHostStack(t *testing.T) {
	program := node.Program(t)
	if _, _, err := harness.HostStackPrograms(program); err != nil {
		t.Skip(err)
	}
	var out bytes.Buffer
	b, err := harness.New(harness.Settings{Program: program, Runs: 1, Slice: 200 * time.Millisecond, CPUs: harness.CPUsAuto}, &out)
	if err != nil {
		t.Fatal(err)
	}
	if err := Part.Run(t.Context(), b); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	r := b.Results
	for _, c := range harness.LoadCases(false) {
		for side := range sides {
			if got := r.Samples(hostStackSeries(side, c), harness.MetricP90); len(got) != 1 || got[0] <= 0 {
				t.Errorf("%s, %+v: p90 %v", names[side], c, got)
			}
		}
	}
	for _, c := range exchangeCases() {
		for side := range exchangeSides {
			if got := r.Samples(exchangeSeries(side, c), harness.MetricP90); len(got) != 1 || got[0] <= 0 {
				t.Errorf("%s, %s: p90 %v", exchangeNames[side], c, got)
			}
		}
	}
	Part.Print(&b.Report)
}
