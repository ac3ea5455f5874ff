// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// plainReader parses simple YAML, as most programs generate manifests, ten times as fast as the YAML parser:
// blocks of fields and lists, and one-line values that are names, numbers, addresses or quoted. It accepts only
// an explicit subset; for anything else, including every mistake, plainTree returns false, and the YAML parser
// decides. So its trees are those of the YAML parser, except for columns and comments.
type plainReader struct {
	data  []byte // rest of the document
	text  string // whole document
	line  int    // number of the current line, from 1
	end   int    // end of the current line in text
	left  []byte // unread part of the current line
	depth int    // column of left; -1: at the end
	bad   bool   // the document is not plain
	nodes []yaml.Node
}

// longestPlain bounds lines, because a YAML mapping key has at most 1024 characters.
const longestPlain = 1000

// plainTree returns the tree of a document with the file's line numbers, or false.
func plainTree(doc document) (*yaml.Node, bool) {
	if slices.ContainsFunc(doc.data, notPlain) {
		return nil, false
	}
	r := &plainReader{data: doc.data, text: string(doc.data), line: doc.line - 1, end: -1}
	if bytes.HasPrefix(doc.data, []byte("---\n")) {
		r.cut()
	}
	r.next()
	if r.depth != 0 || r.dash() {
		return nil, false
	}
	root := r.mapping(0)
	return root, !r.bad && r.depth < 0
}

// notPlain reports tabs, non-ASCII characters, and '#', which starts a comment.
func notPlain(c byte) bool { return c != '\n' && (c < ' ' || c > '~' || c == '#') }

// cut removes and returns the next line.
func (r *plainReader) cut() (line []byte) {
	line, r.data, _ = bytes.Cut(r.data, []byte("\n"))
	r.line++
	r.end += 1 + len(line)
	return line
}

// next advances to the next line that is not blank.
func (r *plainReader) next() {
	for len(r.data) > 0 {
		line := r.cut()
		r.left = bytes.TrimLeft(line, " ")
		if len(r.left) == 0 {
			continue
		}
		r.depth = len(line) - len(r.left)
		r.bad = r.bad || len(line) > longestPlain || line[len(line)-1] == ' '
		return
	}
	r.left, r.depth = nil, -1
}

// dash reports whether a list element starts here.
func (r *plainReader) dash() bool { return len(r.left) > 1 && r.left[0] == '-' && r.left[1] == ' ' }

// node returns a node at the current line.
func (r *plainReader) node(kind yaml.Kind, tag, value string) *yaml.Node {
	if len(r.nodes) == 0 {
		r.nodes = make([]yaml.Node, 32) // allocate in blocks, which is cheaper
	}
	n := &r.nodes[0]
	r.nodes = r.nodes[1:]
	n.Kind, n.Tag, n.Value, n.Line = kind, tag, value, r.line
	return n
}

// mapping reads the fields at a column.
func (r *plainReader) mapping(column int) *yaml.Node {
	m := r.node(yaml.MappingNode, "!!map", "")
	for r.depth == column && !r.dash() && !r.bad {
		length := bytes.IndexByte(r.left, ':')
		if length < 1 || !isWord(r.left[:length]) {
			break
		}
		// Names of fields are not copied but refer to the document's text.
		start := r.end - len(r.left)
		name := r.node(yaml.ScalarNode, "!!str", r.text[start:start+length])
		r.left = r.left[length+1:]
		m.Content = append(m.Content, name, r.value(column))
	}
	if len(m.Content) == 0 || r.depth >= column {
		r.bad = true
	}
	return m
}

// value reads the value after a field's colon.
func (r *plainReader) value(column int) *yaml.Node {
	if len(r.left) > 1 && r.left[0] == ' ' {
		r.left = r.left[1:]
		return r.inline()
	}
	if len(r.left) > 0 {
		r.bad = true
	}
	switch r.next(); {
	case r.dash() && r.depth >= column:
		return r.sequence(r.depth)
	case r.depth > column && !r.bad:
		return r.mapping(r.depth)
	}
	r.bad = true // including a missing value
	return nil
}

// sequence reads the elements at a column.
func (r *plainReader) sequence(column int) *yaml.Node {
	s := r.node(yaml.SequenceNode, "!!seq", "")
	for r.depth == column && r.dash() && !r.bad {
		r.left = r.left[2:]
		if length := bytes.IndexByte(r.left, ':'); length > 0 && isWord(r.left[:length]) &&
			(length+1 == len(r.left) || r.left[length+1] == ' ') {
			r.depth = column + 2
			s.Content = append(s.Content, r.mapping(column+2))
		} else {
			s.Content = append(s.Content, r.inline())
		}
	}
	return s
}

// inline reads a one-line value up to its end. A continuation line would be indented deeper than the block
// around it, so it is not accepted.
func (r *plainReader) inline() *yaml.Node {
	n := r.flow()
	if len(r.left) > 0 {
		r.bad = true
	}
	r.next()
	return n
}

// flow reads a scalar, or a list of scalars in brackets.
func (r *plainReader) flow() *yaml.Node {
	switch {
	case string(r.left) == "{}":
		n := r.node(yaml.MappingNode, "!!map", "")
		n.Style, r.left = yaml.FlowStyle, nil
		return n
	case len(r.left) == 0 || r.left[0] != '[':
		return r.scalar("")
	}
	s := r.node(yaml.SequenceNode, "!!seq", "")
	s.Style, r.left = yaml.FlowStyle, r.left[1:]
	for !r.bad {
		if len(s.Content) == 0 && bytes.HasPrefix(r.left, []byte("]")) {
			break
		}
		s.Content = append(s.Content, r.scalar(",]"))
		if rest, more := bytes.CutPrefix(r.left, []byte(", ")); more {
			r.left = rest
			continue
		}
		r.bad = r.bad || len(r.left) == 0 || r.left[0] != ']'
		break
	}
	if !r.bad {
		r.left = r.left[1:]
	}
	return s
}

// scalar reads a scalar up to its end, or to one of the characters in end.
func (r *plainReader) scalar(end string) *yaml.Node {
	if len(r.left) > 0 && (r.left[0] == '"' || r.left[0] == '\'') {
		return r.quoted(r.left[0])
	}
	length := len(r.left)
	if end != "" {
		length = max(0, bytes.IndexAny(r.left, end))
	}
	value := r.left[:length]
	r.left = r.left[length:]
	tag := plainTag(value, end == "")
	r.bad = r.bad || tag == ""
	return r.node(yaml.ScalarNode, tag, string(value))
}

// quoted reads a quoted scalar without escapes.
func (r *plainReader) quoted(quote byte) *yaml.Node {
	length := bytes.IndexByte(r.left[1:], quote)
	if length < 0 {
		r.bad = true
		return nil
	}
	value := r.left[1 : 1+length]
	r.left = r.left[length+2:]
	r.bad = r.bad || bytes.IndexByte(value, '\\') >= 0 || len(r.left) > 0 && r.left[0] == quote
	n := r.node(yaml.ScalarNode, "!!str", string(value))
	n.Style = yaml.DoubleQuotedStyle
	if quote == '\'' {
		n.Style = yaml.SingleQuotedStyle
	}
	return n
}

// isWord reports whether b is a letter followed by letters, digits and name characters, and not a reserved
// word.
func isWord(b []byte) bool {
	if len(b) == 0 || !isLetter(b[0]) {
		return false
	}
	for _, c := range b {
		if !isLetter(c) && !isDigit(c) && strings.IndexByte("._/-", c) < 0 {
			return false
		}
	}
	return !isReserved(b)
}

// isReserved reports whether an unquoted word is not a string in YAML.
func isReserved(b []byte) bool {
	switch string(b) {
	case "true", "True", "TRUE", "false", "False", "FALSE", "null", "Null", "NULL":
		return true
	}
	return false
}

// plainTag returns the YAML tag of an unquoted scalar; "" if unknown. If colons is set, it may be an IPv6
// address.
func plainTag(b []byte, colons bool) string {
	switch string(b) {
	case "true", "false":
		return "!!bool"
	}
	if isWord(b) {
		return "!!str"
	}
	if isReserved(b) {
		return ""
	}
	digits, dots, slashes := 0, 0, 0
	for i, c := range b {
		switch {
		case isDigit(c):
			digits++
		case c == '.':
			dots++
		case c == '/':
			slashes++
		case c == ':' && colons && i > 0 && i+1 < len(b) && isLetter(b[0]):
		case isLetter(c) && isLetter(b[0]):
		default:
			return ""
		}
	}
	switch {
	case len(b) == 0:
		return ""
	case isLetter(b[0]) || isDigit(b[0]) && (dots > 1 || slashes > 0):
		return "!!str"
	case digits == len(b) && digits < 18 && (b[0] != '0' || digits == 1):
		return "!!int"
	}
	return ""
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
func isDigit(c byte) bool  { return c >= '0' && c <= '9' }
