// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"beeline.io/beeline/bench/endurance"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/test/controlplane"
	"beeline.io/beeline/test/needs"
	"beeline.io/beeline/test/node"
)

// Every side serves each kind of clients in each phase, and the text of the results can be written into a page
// next to another run's.
func TestEnduranceSmoke(t *testing.T) {
	if testing.Short() {
		t.Skip("the endurance benchmark takes a minute: `make test-full` runs it")
	}
	needs.Root(t)
	s := commandLine{Settings: harness.Settings{Program: node.Program(t), ControlPlane: "../build/controlplane", CPUs: harness.CPUsAuto, Smoke: true},
		parts: []string{endurance.PartName}, output: filepath.Join(t.TempDir(), "results.json")}
	if err := s.check(1); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), s, &out); err != nil {
		t.Fatal(err)
	}
	r, err := result.Read(s.output)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]int{}
	for _, row := range r.Rows {
		if row.Name != "asked" {
			continue
		}
		rows[row.Side]++
		// At this pace and size nothing is full, so no client fails.
		failed := r.Samples(row.Series, result.Metric{Name: "failed", Unit: "1", Better: result.Lower})
		if asked := row.Samples[0]; asked < 25 || len(failed) != 1 || failed[0] > asked/2 {
			t.Errorf("%s: %[3]v of %.0[2]f clients failed", row.Series, asked, failed)
		}
	}
	sides := 5
	if err := controlplane.Find(s.ControlPlane); err != nil {
		t.Run("kube-proxy", func(t *testing.T) { t.Skip(err) })
		sides--
	}
	if len(rows) != sides {
		t.Errorf("the sides are %v, want %d", rows, sides)
	}
	for side, got := range rows {
		// Three loads, two kinds of clients during the flood, and four kinds of idle connections in
		// both phases.
		if want := 3 + 2 + 2*4; got != want {
			t.Errorf("%s has %d rows, want %d", side, got, want)
		}
	}
	if got := len(r.Of(endurance.PartName, result.Metric{Name: "flood packets per second", Unit: "1/s", Better: result.None})); got != len(rows) {
		t.Errorf("%d rates of floods, want one of each side", got)
	}
	page := filepath.Join(t.TempDir(), "page.md")
	marks := fmt.Sprintf(markBegin+markEnd+"between\n"+markBegin+"old\n"+markEnd+markBegin+markEnd, markText, markText, endurance.PartName, endurance.PartName, markCharts, markCharts)
	if err := os.WriteFile(page, []byte(marks), 0o600); err != nil {
		t.Fatal(err)
	}
	printed(t, "doc", s.output, "--into", page)
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Replace(marks, "old\n", "```\n"+out.String()+"```\n", 1)
	if string(text) != want {
		t.Errorf("the page is\n%s\nwant\n%s", text, want)
	}
}
