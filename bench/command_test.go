// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
)

// Commands that measure nothing say what is wrong with their arguments, and name the file.
func TestCommandErrors(t *testing.T) {
	folder := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	run := func(name, scenario string, sample float64) string {
		f := &result.File{Schema: result.Schema}
		for range 9 {
			f.Add(result.Row{Series: result.Series{Part: "hook", Scenario: scenario, Side: harness.SideBeeline}, Metric: result.Metric{Name: "time per call", Unit: "ns", Better: result.Lower}}, sample)
			sample *= 1.01
		}
		path := filepath.Join(folder, name)
		if err := f.Write(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	text, old := file("text", "Median"), file("old", `{"schema":1,"runs":31}`)
	one, other, slower := run("one", "a", 100), run("other", "b", 100), run("slower", "a", 200)
	for _, c := range []struct {
		args []string
		want string // of the error; empty: there is none
	}{
		{[]string{"compare", text, one}, text + ": this is no JSON object"},
		{[]string{"compare", one, old}, old + ": the schema is 1"},
		{[]string{"compare", one, other}, "no row in common"},
		{[]string{"compare", one}, "accepts 2 arg"},
		{[]string{"compare", one, slower}, ""},
		{[]string{"compare", "--json", "--fail-on-worse", slower, one}, ""},
		{[]string{"compare", "--fail-on-worse", one, slower}, "1 of 1 rows are worse"},
		{[]string{"doc", text}, "no JSON"},
		{[]string{"doc", one}, ""},
		{[]string{"doc", one, "--into", file("page.md", "# No marks")}, "page.md: there are no lines"},
		{[]string{"chart", one, "--out", folder}, "no part with charts"},
		{[]string{"chart", one}, `required flag(s) "out"`},
		{[]string{"--part", "sokets"}, "--part sokets: the parts are"},
		{[]string{"--part", "hook", "--peer", "katran=12,packet=x"}, "name it with --part"},
		{[]string{"--runs", "0"}, "--runs 0: between"},
		{[]string{"--part", "endurance", "--load", "0s"}, "--load 0s: between"},
		{[]string{"everything"}, `unknown command "everything"`},
	} {
		command := command()
		command.SetOut(io.Discard)
		command.SetArgs(c.args)
		if err := command.Execute(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want an error with %q", c.args, err, c.want)
		}
	}
}
