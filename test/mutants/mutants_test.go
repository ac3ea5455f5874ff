// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The lists fit the sources: the old text of each change occurs once, and each test that a list names exists.
func TestListsFitTheSources(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	mutants, err := selected("list", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		if _, err := m.apply(root); err != nil {
			t.Error(err)
		}
		for _, c := range m.tests {
			if c.kind != "test" {
				continue
			}
			for _, one := range strings.Split(c.filter, "|") {
				if !hasTest(t, filepath.Join(root, c.target), one) {
					t.Errorf("%s, line %d: mutant %q: no test of %s matches %q", m.part, m.line, m.name, c.target, one)
				}
			}
		}
	}
}

// hasTest reports whether a test in a folder matches a pattern of -run.
func hasTest(t *testing.T, folder, pattern string) bool {
	t.Helper()
	top, _, _ := strings.Cut(pattern, "/")
	named := regexp.MustCompile(top)
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range testFunction.FindAllStringSubmatch(string(text), -1) {
			if named.MatchString(f[1]) {
				return true
			}
		}
	}
	return false
}

var testFunction = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

const example = `# a comment
mutant two ends of a range are swapped
file a.go
-first := 1
+first := 2
-second := 2
+second := 1
test ./a TestRange
test ./b TestRange/one
survives no caller sees it
`

// A list is parsed into changes and tests, and an error names the line and what is missing.
func TestParseList(t *testing.T) {
	mutants, err := parseList("part", example)
	if err != nil || len(mutants) != 1 {
		t.Fatalf("%d mutants, %v; want 1", len(mutants), err)
	}
	m := mutants[0]
	if len(m.hunks) != 2 || m.hunks[1] != (hunk{"a.go", "second := 2", "second := 1"}) || len(m.tests) != 2 || m.survives != "no caller sees it" {
		t.Errorf("parsed as %+v", m)
	}
	for want, text := range map[string]string{
		"line 1: the first line of a mutant": "file a.go\n",
		"line 4: a change needs a line":      "mutant a\ntest ./a T\n\n-x\n",
		"line 2: want mutant, file":          "mutant a\nfiel a.go\n",
		"lacks a change":                     "mutant a\ntest ./a T\n",
		"lacks a test":                       "mutant a\nfile a.go\n-x\n+y\n",
		"lacks a test with a package and":    "mutant a\nfile a.go\n-x\n+y\ntest ./a\n",
		"lacks a name of its own":            example + example,
	} {
		if _, err := parseList("part", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
}

// The old text of a change has to occur exactly once.
func TestApply(t *testing.T) {
	mutants, err := parseList("part", example)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text, want string
		fails      bool
	}{
		{"first := 1\nsecond := 2\n", "first := 2\nsecond := 1\n", false},
		{"first := 1\n", "", true},
		{"first := 1\nsecond := 2\nsecond := 2\n", "", true},
	} {
		root := t.TempDir()
		if err := os.WriteFile(filepath.Join(root, "a.go"), []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		changed, err := mutants[0].apply(root)
		if (err != nil) != c.fails || changed["a.go"] != c.want {
			t.Errorf("%q becomes %q, %v; want %q", c.text, changed["a.go"], err, c.want)
		}
	}
}

// The output of a test names the innermost test that failed, or the one that ran when the time was over.
func TestOutcomes(t *testing.T) {
	failed := errors.New("exit status 1")
	for _, c := range []struct {
		output string
		err    error
		ran    bool
		want   string
	}{
		{"--- PASS: TestA (0.00s)\nPASS\n", nil, true, ""},
		{"--- SKIP: TestA (0.00s)\nPASS\n", nil, false, ""},
		{"testing: warning: no tests to run\nPASS\n", nil, false, ""},
		{"--- FAIL: TestA (0.00s)\n    --- PASS: TestA/x (0.00s)\n    --- FAIL: TestA/y (0.00s)\n        --- FAIL: TestA/y/z (0.00s)\n--- FAIL: TestB (0.00s)\n", failed, true, "TestA/y/z"},
		{"panic: test timed out after 5m0s\n\trunning tests:\n\t\tTestA (5m0s)\n", failed, false, "TestA, which timed out"},
		{"flag provided but not defined\n", failed, false, "the test program: exit status 1"},
	} {
		if o := goOutcome(c.output, c.err); o.ran != c.ran || o.failed != c.want {
			t.Errorf("%q: ran %v, failed %q; want %v, %q", c.output, o.ran, o.failed, c.ran, c.want)
		}
	}
}
