// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A text stands once, with the names of all parts that have it; a part without a licence is an error.
func TestDocument(t *testing.T) {
	folder := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	same, again, other := file("LICENSE", "one text\n"), file("LICENSE.txt", "one text\r\n"), file("NOTICE", "another")
	text, err := document([]part{{"a v1", []string{same}}, {"b v2", []string{again, other}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(text); strings.Count(got, "one text") != 1 || !strings.Contains(got, "a v1 (LICENSE)\nb v2 (LICENSE.txt)\n\none text\n") || !strings.Contains(got, "b v2 (NOTICE)\n\nanother\n") {
		t.Errorf("the document is\n%s", got)
	}
	if _, err := document([]part{{name: "c v3"}}); err == nil || !strings.Contains(err.Error(), "c v3 has no licence") {
		t.Errorf("a part without a licence: %v", err)
	}
}
