// SPDX-License-Identifier: Apache-2.0

// Package printable makes untrusted text safe to print on a terminal. Names of processes, replies and
// certificates of servers, and fields of objects may contain escape sequences that move the cursor, change the
// screen or make the terminal send input on the operator's behalf.
package printable

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// harmless reports whether a terminal only displays a character: it is no control character (C0, DEL, C1), and
// neither changes the direction of text nor breaks a line invisibly.
func harmless(r rune) bool {
	switch {
	case unicode.IsControl(r):
		return false
	case r == 0x2028, r == 0x2029, r == 0x061c, r == 0x200e, r == 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
		return false
	}
	return true
}

// Text escapes characters that a terminal would interpret as \u001b and the like, and invalid UTF-8 as \ufffd.
// It keeps line breaks and tabs. JSON stays valid, because its strings may contain these escapes.
func Text(s string) string {
	return clean(s, func(r rune) bool { return r == '\n' || r == '\t' || harmless(r) })
}

// Line is Text on one line: line breaks become "; ", and tabs become spaces.
func Line(s string) string {
	s = strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "; ")
	return clean(strings.ReplaceAll(s, "\t", " "), harmless)
}

func clean(s string, keeps func(rune) bool) string {
	if utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !keeps(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if keeps(r) && !(r == utf8.RuneError && n == 1) {
			b.WriteString(s[:n])
		} else {
			fmt.Fprintf(&b, "\\u%04x", r)
		}
		s = s[n:]
	}
	return b.String()
}

// Writer writes the Text of its input. It is not safe for concurrent use.
type Writer struct {
	to   io.Writer
	rest []byte // start of an incomplete character
}

// NewWriter returns a Writer that writes to another one.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

func (w *Writer) Write(p []byte) (int, error) {
	all := append(w.rest, p...)
	end := len(all)
	for back := 1; back < utf8.UTFMax && back <= len(all); back++ {
		if at := len(all) - back; utf8.RuneStart(all[at]) {
			if !utf8.FullRune(all[at:]) {
				end = at
			}
			break
		}
	}
	w.rest = append([]byte(nil), all[end:]...)
	if end == 0 {
		return len(p), nil
	}
	if _, err := io.WriteString(w.to, Text(string(all[:end]))); err != nil {
		return 0, err
	}
	return len(p), nil
}
