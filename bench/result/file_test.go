// SPDX-License-Identifier: Apache-2.0

package result

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var speed = Metric{Name: "time", Unit: "ns", Better: Lower}

func example() *File {
	f := &File{Schema: Schema, Program: "beeline 1"}
	for round := range 3 {
		for i, side := range []string{"one", "other"} {
			f.Add(Row{Series: Series{Part: "edge", Scenario: "case", Side: side, Parameters: Parameters{"flows": 1, "services": 2}},
				Metric: speed, Against: []string{"", "one"}[i]}, float64(10*i+round))
		}
	}
	return f
}

// A written file can be read, and is the same when written again.
func TestWriteAndRead(t *testing.T) {
	first, second := filepath.Join(t.TempDir(), "a.json"), filepath.Join(t.TempDir(), "b.json")
	f := example()
	if err := f.Write(first); err != nil {
		t.Fatal(err)
	}
	again, err := Read(first)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(f, again, cmpopts.IgnoreUnexported(File{})); diff != "" {
		t.Error(diff)
	}
	if err := again.Write(second); err != nil {
		t.Fatal(err)
	}
	a, _ := os.ReadFile(first)
	b, _ := os.ReadFile(second)
	if len(a) == 0 || !bytes.Equal(a, b) {
		t.Errorf("written twice it is\n%s\nand\n%s", a, b)
	}
	// Samples belong to their row, in the order of the rounds, and know their counterpart.
	if diff := cmp.Diff([]float64{10, 11, 12}, again.Rows[1].Samples); diff != "" || len(again.Rows) != 2 {
		t.Error(diff, again.Rows)
	}
	if diff := cmp.Diff([]float64{0, 1, 2}, again.Counterpart(again.Rows[1])); diff != "" {
		t.Error(diff)
	}
}

// A file with another content is refused, with the reason.
func TestReadBad(t *testing.T) {
	const row = `{"part":"edge","scenario":"case","side":"one","metric":"time","unit":"ns","better":"lower","samples":[1]}`
	for _, c := range []struct{ text, want string }{
		{"", "no JSON"},
		{"Median of all", "no JSON"},
		{"[1,2]", "no JSON object"},
		{`{"results":[]}`, `no "schema"`},
		{`{"schema":1}`, "the schema is 1, and this program reads 2"},
		{`{"schema":2,"colour":"red"}`, `"colour"`},
		{`{"schema":2,"rows":[{"part":"edge"}]}`, "row 0"},
		{`{"schema":2,"rows":[` + strings.Replace(row, "lower", "faster", 1) + `]}`, `"faster" is no direction`},
		{`{"schema":2,"rows":[` + strings.Replace(row, "[1]", "[]", 1) + `]}`, "no samples"},
		{`{"schema":2,"rows":[` + row + `,` + row + `]}`, "is a duplicate"},
	} {
		path := filepath.Join(t.TempDir(), "results.json")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%.60s: %v, want the file's name and %q", c.text, err, c.want)
		}
	}
	if _, err := Read(filepath.Join(t.TempDir(), "nothing")); !os.IsNotExist(err) {
		t.Errorf("a missing file: %v", err)
	}
}
