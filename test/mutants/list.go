// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is a small change of the sources that a test has to notice.
type mutant struct {
	part, name string
	hunks      []hunk
	tests      []testCommand // at least one of them fails with the change
	survives   string        // why no test has to fail; "" if one has to
	line       int           // of the list, for messages
}

// hunk replaces text of a file. The old text occurs once in it, and may be a part of a line.
type hunk struct {
	file     string // relative to the root of the sources
	old, new string
}

// testCommand selects tests: those of a Go package, of a crate, or cases of the conformance suite.
type testCommand struct {
	kind   string // "test", "cargo", "loom" or "conformance"
	target string // the package, the crate, or the cases
	filter string // -run of go test; the filter of cargo test
}

func (c testCommand) String() string {
	return strings.TrimSpace(c.kind + " " + c.target + " " + c.filter)
}

// parts returns the names of all parts in a folder of lists: each file is one.
func parts(folder string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil {
		return nil, err
	}
	for i, f := range files {
		files[i] = filepath.Base(f)
	}
	return files, nil
}

// readList reads the list of a part.
func readList(folder, part string) ([]*mutant, error) {
	text, err := os.ReadFile(filepath.Join(folder, part))
	if err != nil {
		return nil, fmt.Errorf("part %s: %w", part, err)
	}
	return parseList(part, string(text))
}

// parseList parses a list. Lines of a mutant:
//
//	mutant NAME
//	file PATH
//	-a line of the old text
//	+a line of the new text
//	test PACKAGE REGEXP, or cargo CRATE [FILTER], or loom CRATE [FILTER], or conformance CASE...
//	survives REASON
//
// Another `file`, or a line with - after one with +, begins another hunk. Lines that are empty or begin with # are
// comments.
func parseList(part, text string) ([]*mutant, error) {
	p := parser{part: part}
	for i, line := range strings.Split(text, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		if err := p.take(line, i+1); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w: %q", part, i+1, err, line)
		}
	}
	return p.mutants, p.check()
}

// parser holds the state between two lines of a list.
type parser struct {
	part    string
	mutants []*mutant
	file    string
	hunk    *hunkLines // the last one of the last mutant
	all     map[*mutant][]*hunkLines
}

type hunkLines struct {
	file     string
	old, new []string
}

func (p *parser) take(line string, number int) error {
	word, rest, _ := strings.Cut(line, " ")
	if word == "mutant" {
		p.mutants = append(p.mutants, &mutant{part: p.part, name: rest, line: number})
		p.file, p.hunk = "", nil
		return nil
	}
	if len(p.mutants) == 0 {
		return fmt.Errorf("the first line of a mutant is mutant NAME")
	}
	m := p.mutants[len(p.mutants)-1]
	switch {
	case line[0] == '-' || line[0] == '+':
		return p.change(m, line)
	case word == "file":
		p.file, p.hunk = rest, nil
	case word == "survives":
		m.survives = rest
	case word == "test" || word == "cargo" || word == "loom" || word == "conformance":
		c := testCommand{kind: word, target: rest}
		if word != "conformance" {
			c.target, c.filter, _ = strings.Cut(rest, " ")
		}
		m.tests = append(m.tests, c)
	default:
		return fmt.Errorf("want mutant, file, -, +, test, cargo, loom, conformance or survives")
	}
	return nil
}

// change takes a line of the old or of the new text.
func (p *parser) change(m *mutant, line string) error {
	if p.file == "" {
		return fmt.Errorf("a change needs a line with file PATH before it")
	}
	if p.hunk == nil || (line[0] == '-' && len(p.hunk.new) > 0) {
		p.hunk = &hunkLines{file: p.file}
		if p.all == nil {
			p.all = map[*mutant][]*hunkLines{}
		}
		p.all[m] = append(p.all[m], p.hunk)
	}
	if line[0] == '-' {
		p.hunk.old = append(p.hunk.old, line[1:])
	} else {
		p.hunk.new = append(p.hunk.new, line[1:])
	}
	return nil
}

// check completes the mutants, and reports those that say too little.
func (p *parser) check() error {
	var names []string
	for _, m := range p.mutants {
		for _, h := range p.all[m] {
			m.hunks = append(m.hunks, hunk{h.file, strings.Join(h.old, "\n"), strings.Join(h.new, "\n")})
		}
		lacks := ""
		switch {
		case m.name == "" || slices.Contains(names, m.name):
			lacks = "a name of its own"
		case len(m.hunks) == 0:
			lacks = "a change"
		case len(m.tests) == 0:
			lacks = "a test"
		}
		for _, c := range m.tests {
			if c.target == "" || (c.kind == "test" && c.filter == "") {
				lacks = "a test with a package and a regular expression"
			}
		}
		if lacks != "" {
			return fmt.Errorf("%s, line %d: mutant %q lacks %s", p.part, m.line, m.name, lacks)
		}
		names = append(names, m.name)
	}
	return nil
}

// apply returns the changed files of a mutant, by their path relative to the root of the sources.
func (m *mutant) apply(root string) (map[string]string, error) {
	changed := map[string]string{}
	for _, h := range m.hunks {
		text, ok := changed[h.file]
		if !ok {
			data, err := os.ReadFile(filepath.Join(root, h.file))
			if err != nil {
				return nil, fmt.Errorf("%s, line %d: mutant %q: %w", m.part, m.line, m.name, err)
			}
			text = string(data)
		}
		if n := strings.Count(text, h.old); n != 1 || h.old == "" {
			return nil, fmt.Errorf("%s, line %d: mutant %q: the old text occurs %d times in %s, and has to occur once:\n%s",
				m.part, m.line, m.name, n, h.file, h.old)
		}
		changed[h.file] = strings.Replace(text, h.old, h.new, 1)
	}
	return changed, nil
}
