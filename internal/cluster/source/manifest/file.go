// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"beeline.io/beeline/internal/cluster/source"
)

// largeFile is the size in bytes of a file from which on its documents are parsed in parallel. Smaller files are,
// one beside the other: a new goroutine for each would copy its growing stack, and a lone small file takes
// milliseconds.
const largeFile = 128 << 10

// parse decodes the content of a file. It continues after errors.
func parse(name string, data []byte, lim limits) *file {
	f := &file{name: name}
	if !utf8.Valid(data) {
		f.problems = source.Problems{{File: name, Line: invalidLine(data), Reason: "not UTF-8 text; save the file as UTF-8"}}
		return f
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	var left atomic.Int64
	left.Store(lim.alias)

	docs := []document{{data, 1}}
	parseDocument := func(doc document) ([]*yaml.Node, *syntaxError) { return parseYAML(doc, &left) }
	if strings.EqualFold(filepath.Ext(name), ".json") {
		parseDocument = func(doc document) ([]*yaml.Node, *syntaxError) { return parseJSON(doc.data) }
	} else {
		docs = split(data)
	}
	contents := make([]content, len(docs))
	each := parallel
	if len(data) < largeFile {
		each = inTurn
	}
	each(len(docs), func(i int) {
		r := treeReader{file: name, left: &left, noAnnotations: lim.noAnnotations}
		if structureMarks(docs[i].data) > lim.marks {
			r.problem(docs[i].line, "", "the document is too large to be read at once; split it with \"---\" lines, or into several files")
		} else if trees, err := parseDocument(docs[i]); err != nil {
			r.problem(err.line, "", "%s", err.reason)
		} else {
			for _, t := range trees {
				r.read(t, 0)
			}
		}
		contents[i] = r.content
	})
	f.gather(contents, lim.report)
	return f
}

// meantKinds are kinds that affect Service traffic but are not read.
var meantKinds = map[string]string{
	"Endpoints": "is not read: write an EndpointSlice (discovery.k8s.io/v1) with the label kubernetes.io/service-name; skipped",
}

// gather joins the documents of a file. Each kind that is not read is reported once.
func (f *file) gather(contents []content, report int) {
	type seen struct{ line, count int }
	counts := make(map[string]seen)
	for _, c := range contents {
		f.objects = append(f.objects, c.objects...)
		f.problems = append(f.problems, c.problems...)
		for _, s := range c.skipped {
			k := counts[s.kind]
			if k.count == 0 {
				k.line = s.line
			}
			k.count++
			counts[s.kind] = k
		}
	}
	for name, k := range counts {
		reason, meant := meantKinds[name]
		if !meant {
			reason = "a kind that does not decide where Service traffic goes; skipped"
		}
		if k.count > 1 {
			reason += fmt.Sprintf(", %d of them", k.count)
		}
		f.problems = append(f.problems, source.Problem{File: f.name, Line: k.line, Object: name, Reason: reason, Warning: true, Harmless: !meant})
	}
	slices.SortStableFunc(f.problems, comparePlace)
	f.problems = truncate(f.problems, report, f.name)
}

// truncate keeps at most this many problems, errors before warnings, so that a file with errors never counts as
// valid.
func truncate(problems source.Problems, most int, file string) source.Problems {
	if len(problems) <= most {
		return problems
	}
	slices.SortStableFunc(problems, func(a, b source.Problem) int { return cmp.Compare(rank(a), rank(b)) })
	shown := most - 1
	rest := source.Problem{File: file, Warning: problems[shown].Warning, Harmless: problems[shown].Harmless, Reason: fmt.Sprintf("%d more problems are not shown", len(problems)-shown)}
	problems = append(slices.Clone(problems[:shown]), rest)
	slices.SortStableFunc(problems, comparePlace)
	return problems
}

// rank orders errors before warnings, and warnings before harmless ones.
func rank(p source.Problem) int {
	switch {
	case p.Harmless:
		return 2
	case p.Warning:
		return 1
	}
	return 0
}

func comparePlace(a, b source.Problem) int {
	return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line),
		cmp.Compare(a.Object, b.Object), cmp.Compare(a.Reason, b.Reason))
}

// invalidLine returns the line of the first byte that is not UTF-8.
func invalidLine(data []byte) int {
	line := 0
	for text := range bytes.Lines(data) {
		if line++; !utf8.Valid(text) {
			break
		}
	}
	return line
}
