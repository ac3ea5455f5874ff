// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"

	"go.yaml.in/yaml/v4"
)

// document is one of the YAML documents of a file, which "---" lines separate. Documents are split before they
// are parsed, so that a syntax error in one does not hide errors in the next, and so that they can be parsed in
// parallel.
type document struct {
	data []byte
	line int // line in the file where data starts, from 1
}

// blank is white space in YAML and in JSON.
const blank = " \t\r\n"

// split splits a YAML file at its "---" lines. Such a line has no other meaning in YAML, not even in a block
// scalar (YAML 1.2.2, section 9.1.2). The line belongs to the document after it, and so do parts with only
// comments and directives (%YAML).
func split(data []byte) []document {
	var docs []document
	pos, start, startLine, line, empty := 0, 0, 1, 0, true
	for text := range bytes.Lines(data) {
		line++
		rest := text
		if isMarker(text) {
			rest = text[3:]
			if !empty {
				docs = append(docs, document{data[start:pos], startLine})
				start, startLine, empty = pos, line, true
			}
		}
		if rest = bytes.Trim(rest, blank); len(rest) > 0 && rest[0] != '#' && rest[0] != '%' {
			empty = false
		}
		pos += len(text)
	}
	if !empty {
		docs = append(docs, document{data[start:], startLine})
	}
	return docs
}

// isMarker reports whether a line starts a document.
func isMarker(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("---"))
	return ok && (len(rest) == 0 || strings.IndexByte(blank, rest[0]) >= 0)
}

// syntaxError is an error in the YAML or JSON syntax, with its line.
type syntaxError struct {
	line   int // line in the file
	reason string
}

// parseYAML parses a document into trees with the file's line numbers: none, one, or several, because a line
// "..." also ends a document.
func parseYAML(doc document, left *atomic.Int64) ([]*yaml.Node, *syntaxError) {
	trees, err := parseTrees(doc.data)
	if err != nil {
		return nil, describeYAML(doc, err)
	}
	for i, t := range trees {
		if t.Kind == yaml.DocumentNode && len(t.Content) == 1 {
			trees[i] = t.Content[0]
		}
		if err := prepare(trees[i], doc.line-1, left); err != nil {
			return nil, err
		}
	}
	return trees, nil
}

func parseTrees(data []byte) (trees []*yaml.Node, err error) {
	// A file must not crash the agent, and the parser panics on internal errors.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: %v", r)
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var n yaml.Node
		if err := dec.Decode(&n); errors.Is(err, io.EOF) {
			return trees, nil
		} else if err != nil {
			return nil, err
		}
		trees = append(trees, &n)
	}
}

// hints give the most frequent cause of a parser error.
var hints = map[string]string{
	"mapping values are not allowed in this context":        " (is the line indented too far, or does a value with \": \" in it need quotes?)",
	"did not find expected key":                             " (is the line indented as the lines above it are?)",
	"did not find expected '-' indicator":                   " (is the line indented as the list above it is?)",
	"could not find expected ':'":                           " (a field is written \"name: value\")",
	"found character that cannot start any token":           " (put the value in quotes; indent with spaces, not tabs)",
	"found a tab character that violates indentation":       " (indent with spaces)",
	"found unexpected end of stream":                        " (a quote that is never closed?)",
	"did not find expected ',' or ']'":                      " (a bracket that is never closed?)",
	"did not find expected node content":                    " (a bracket that is never closed?)",
	"did not find expected ',' or '}'":                      " (a bracket that is never closed?)",
	"did not find expected alphabetic or numeric character": " (put the value in quotes)",
}

// describeYAML returns the parser's error in a document, with its line in the file.
func describeYAML(doc document, err error) *syntaxError {
	var at *yaml.LoadError
	if !errors.As(err, &at) {
		return &syntaxError{doc.line, "not YAML: " + err.Error()}
	}
	line, hint := at.Mark.Line, hints[at.Message]
	switch {
	case line == 0: // only the offset is known
		line = countLines(doc.data[:at.Mark.Index])
	case strings.Contains(hint, "never closed") && at.ContextMark.Line > 0:
		line = at.ContextMark.Line // where it is opened
	}
	last := countLines(bytes.TrimRight(doc.data, blank)) // the parser may be at the end of the file
	return &syntaxError{doc.line + min(line, last) - 1, "not YAML: " + at.Message + hint}
}

func countLines(data []byte) int { return 1 + bytes.Count(data, []byte("\n")) }

// structureMarks returns an upper bound, within a factor of two, of the number of values in text. Each takes
// some 200 bytes of memory while the document is processed.
func structureMarks(data []byte) int {
	n := 0
	for _, mark := range []string{"\n", ",", ":"} {
		n += bytes.Count(data, []byte(mark))
	}
	return n
}
