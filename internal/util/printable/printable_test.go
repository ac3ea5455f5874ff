// SPDX-License-Identifier: Apache-2.0

package printable

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for given, want := range map[string][2]string{ // Text, Line
		"plain, ümläut, 漢字, 🐝":          {"plain, ümläut, 漢字, 🐝", "plain, ümläut, 漢字, 🐝"},
		"\x1b]0;title\x07":              {`\u001b]0;title\u0007`, `\u001b]0;title\u0007`},
		"a\x1b[2Jb\r\x00\x7f":           {`a\u001b[2Jb\u000d\u0000\u007f`, `a\u001b[2Jb\u000d\u0000\u007f`},
		"C1 \u009b2J \u0090":            {`C1 \u009b2J \u0090`, `C1 \u009b2J \u0090`},
		"bare C1 \x9b2J, half \xe6\xbc": {`bare C1 \ufffd2J, half \ufffd\ufffd`, `bare C1 \ufffd2J, half \ufffd\ufffd`},
		"two\nlines\tand a tab\n":       {"two\nlines\tand a tab\n", "two; lines and a tab"},
		"turned \u202egnp.exe \u2066":   {`turned \u202egnp.exe \u2066`, `turned \u202egnp.exe \u2066`},
		"\u2028":                        {`\u2028`, `\u2028`},
	} {
		if got := Text(given); got != want[0] {
			t.Errorf("%q as text is %q, want %q", given, got, want[0])
		}
		if got := Line(given); got != want[1] {
			t.Errorf("%q as a line is %q, want %q", given, got, want[1])
		}
	}
}

// TestJSONStays: a program reads the original value from escaped JSON.
func TestJSONStays(t *testing.T) {
	value := "\x1b[2J \u009b \x7f \u202e \\u001b \"quoted\"\n"
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var got string
	if err := json.Unmarshal([]byte(Text(string(text))), &got); err != nil || got != value {
		t.Errorf("%q is decoded as %q, %v", value, got, err)
	}
}

// FuzzWriter: however a text is split into writes, the output is Text of the whole, and harmless.
func FuzzWriter(f *testing.F) {
	f.Add([]byte("漢字 \x1b[2J \u009b \xe6\xbc"), uint8(1))
	f.Add([]byte("\xc2\x9b\x9b"), uint8(1))
	f.Add([]byte("\xf0\x9f\x90\x9d🐝"), uint8(3))
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		var out strings.Builder
		w := NewWriter(&out)
		for left := text; len(left) > 0; {
			n := min(len(left), int(size)+1)
			if wrote, err := w.Write(left[:n]); wrote != n || err != nil {
				t.Fatalf("%d of %d written: %v", wrote, n, err)
			}
			left = left[n:]
		}
		got := out.String()
		if want := Text(string(text)); got != want && !(len(w.rest) > 0 && strings.HasPrefix(want, got)) {
			t.Errorf("%q in pieces of %d is %q, want %q", text, int(size)+1, got, want)
		}
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return r != '\n' && r != '\t' && !harmless(r) }) {
			t.Errorf("%q is written as %q", text, got)
		}
	})
}
