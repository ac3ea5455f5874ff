// SPDX-License-Identifier: Apache-2.0

package web

import (
	"strings"
	"testing"
)

// A run of wrk with errors, without replies or without a result is invalid.
func TestParseWrk(t *testing.T) {
	const report = "Running 2s test @ http://192.0.2.1:80/\n  2 threads and 100 connections\n"
	r, err := parseWrk(report + `{"requests":200,"microseconds":2000000,"p50":1500,"p99":9000,"errors":0}` + "\n")
	if want := (Result{Requests: 200, Microseconds: 2e6, P50: 1500, P99: 9000}); err != nil || r != want {
		t.Errorf("%+v (%v), want %+v", r, err, want)
	}
	for _, c := range []struct{ out, wrong string }{
		{report + `{"requests":200,"microseconds":2000000,"p50":1500,"p99":9000,"errors":3}`, "3 errors"},
		{report + `{"requests":0,"microseconds":2000000,"p50":0,"p99":0,"errors":0}`, "no or few replies"},
		{report, "no result"},
		{"", "no result"},
	} {
		if _, err := parseWrk(c.out); err == nil || !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%q: %v, want an error with %q", c.out, err, c.wrong)
		}
	}
}
