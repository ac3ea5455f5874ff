// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Each table that docs/develop/tables.md lists exists.
func TestDocumentedTables(t *testing.T) {
	page, err := os.ReadFile("../../docs/develop/tables.md")
	if err != nil {
		t.Fatal(err)
	}
	quoted := regexp.MustCompile("`([a-z_0-9]+)`")
	found := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue // not of the list
		}
		for _, name := range quoted.FindAllStringSubmatch(cells[1], -1) {
			found++
			if product().table(name[1]) == nil {
				t.Errorf("there is no table %s", name[1])
			}
		}
	}
	if found < 20 {
		t.Errorf("%d tables are listed", found)
	}
}
