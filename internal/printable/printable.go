// SPDX-License-Identifier: Apache-2.0

// Package printable makes text from outside harmless to a terminal: names of processes, what servers and
// certificates say, and whatever is written in objects may have escape sequences in it, which would move the
// cursor, change what is on the screen or answer in the operator's name.
package printable

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// harmless says whether a terminal shows a character and does nothing else: no control characters of either set
// (C0, DEL, C1), and none that turn the direction of text or break a line unseen.
func harmless(r rune) bool {
	switch {
	case unicode.IsControl(r):
		return false
	case r == 0x2028, r == 0x2029, r == 0x061c, r == 0x200e, r == 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
		return false
	}
	return true
}

// Text has what a terminal would act on written as \u001b is, octets that are no UTF-8 as \ufffd; line breaks and
// tabs stay. JSON stays what it is: a string of it may have these escapes.
func Text(s string) string {
	return clean(s, func(r rune) bool { return r == '\n' || r == '\t' || harmless(r) })
}

// Line is Text for what is to be one line: line breaks become "; ", and tabs blanks.
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

// Writer writes Text of what it gets. It is for one goroutine at a time.
type Writer struct {
	to   io.Writer
	rest []byte // the beginning of a character that is not complete
}

// NewWriter returns a Writer in front of another one.
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
