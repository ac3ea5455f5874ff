// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"os"
	"strings"
	"testing"
)

// docs/operate/debug.md has a section for each reason that counters, monitor and explain print,
// and for no other.
func TestEachReasonIsDocumented(t *testing.T) {
	names, err := ReasonNames()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../docs/operate/debug.md")
	if err != nil {
		t.Fatal(err)
	}
	_, reasons, found := strings.Cut(string(text), "\n## Reasons\n")
	if !found {
		t.Fatal("docs/operate/debug.md has no section \"Reasons\"")
	}
	reasons, _, _ = strings.Cut(reasons, "\n## ")
	documented := map[string]bool{}
	for _, line := range strings.Split(reasons, "\n") {
		if name, heading := strings.CutPrefix(line, "### "); heading {
			documented[name] = true
		}
	}
	for _, name := range names {
		if !documented[name] {
			t.Errorf("docs/operate/debug.md has no section \"### %s\": add it below \"Reasons\"", name)
		}
		delete(documented, name)
	}
	for name := range documented {
		t.Errorf("docs/operate/debug.md has a section %q, and there is no such reason: remove it", name)
	}
}
