// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/report/condition"
)

// heading is that of the table in docs/operate/differences.md which this test reads.
const heading = "## What becomes of a packet"

// listed are the rows of that table: differences that are meant, which have to be found like faults.
var listed = sync.OnceValues(func() (faults, error) {
	path := filepath.Join("..", "..", "docs", "operate", "differences.md")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	rows, err := parseListed(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return rows, nil
})

// differenceKinds are the words of the table.
var differenceKinds = map[string]string{"passes": Passes, "drops": Drops, "elsewhere": Elsewhere, "other": Other}

func parseListed(text string) (rows faults, err error) {
	_, text, ok := strings.Cut(text, heading+"\n")
	if !ok {
		return nil, fmt.Errorf("there is no %q", heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	var errs []error
	head := 2
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		if head--; head >= 0 {
			continue
		}
		row, err := parseListedRow(strings.TrimSpace(line))
		if err != nil {
			err = fmt.Errorf("%w: %s", err, line)
		}
		rows, errs = append(rows, row), append(errs, err)
	}
	if len(rows) == 0 {
		errs = append(errs, fmt.Errorf("the table below %q has no rows", heading))
	}
	return rows, errors.Join(errs...)
}

// parseListedRow parses
//
//	| `layout=NAME,NAME scenario=NAME`: words | the stack | `difference=KIND`: words | why | switch |
//
// Names have dashes instead of spaces.
func parseListedRow(line string) (f fault, err error) {
	cells := strings.Split(strings.Trim(line, "| "), " | ")
	if len(cells) != 5 {
		return f, fmt.Errorf("%d cells, not case, stack, Beeline, why, switch", len(cells))
	}
	subject, err := facts(cells[0], "layout", "scenario")
	if err != nil {
		return f, err
	}
	result, err := facts(cells[2], "difference", "condition")
	if err != nil {
		return f, err
	}
	f.line = cells[0]
	for _, name := range []string{"layout", "scenario"} {
		if subject[name] == nil {
			return f, fmt.Errorf("the row names no %s", name)
		}
	}
	if f.layouts, err = named(subject["layout"], layoutNames()); err != nil {
		return f, err
	}
	if f.scenarios, err = named(subject["scenario"], scenarioNames()); err != nil {
		return f, err
	}
	if len(result["difference"]) == 0 {
		return f, errors.New("the row names no difference")
	}
	for _, word := range result["difference"] {
		if differenceKinds[word] == "" {
			return f, fmt.Errorf("no difference is named %q", word)
		}
		f.kinds = append(f.kinds, differenceKinds[word])
	}
	for _, code := range result["condition"] {
		f.conditions = append(f.conditions, condition.Code(code))
	}
	return f, f.excusable()
}

// named are names from their forms with dashes instead of spaces.
func named(dashed, known []string) (names []string, err error) {
	for _, d := range dashed {
		i := slices.IndexFunc(known, func(name string) bool { return strings.ReplaceAll(name, " ", "-") == d })
		if i < 0 {
			return nil, fmt.Errorf("nothing is named %q", d)
		}
		names = append(names, known[i])
	}
	return names, nil
}

// excusable is why a row may not excuse anything: a packet that the stack drops, or has elsewhere, and the shortcut
// delivers, has to be announced by a condition of the node.
func (f *fault) excusable() error {
	if f.conditions == nil && (slices.Contains(f.kinds, Passes) || slices.Contains(f.kinds, Elsewhere)) {
		return errors.New("a row may excuse what the stack drops only with the condition that the node has meanwhile")
	}
	return nil
}

// facts parses the pattern at the begin of a cell.
func facts(cell string, known ...string) (map[string][]string, error) {
	parts := strings.SplitN(cell, "`", 3)
	if len(parts) != 3 || parts[0] != "" {
		return nil, fmt.Errorf("%q does not begin with a pattern in backquotes", cell)
	}
	all := map[string][]string{}
	for term := range strings.FieldsSeq(parts[1]) {
		name, values, ok := strings.Cut(term, "=")
		if !ok || values == "" || !slices.Contains(known, name) || all[name] != nil {
			return nil, fmt.Errorf("%q: write each of %s once, as name=value,value", term, strings.Join(known, ", "))
		}
		for value := range strings.SplitSeq(values, ",") {
			all[name] = append(all[name], value)
		}
	}
	return all, nil
}

// mustList returns the rows of the table.
func mustList(t testing.TB) faults {
	t.Helper()
	rows, err := listed()
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// excuses are known faults and listed differences.
func excuses(t testing.TB) faults {
	t.Helper()
	return slices.Concat(known, mustList(t))
}

// wantCondition waits until the node with the shortcut has one of some conditions; wantNoCondition waits
// until it has none, so that the condition says something about the change that is made then.
func (w *world) wantCondition(codes []condition.Code) {
	w.t.Helper()
	w.must(w.sides[0].agent.WaitFor(fmt.Sprintf("aware of %s", codes), func(s *api.Status) bool { return hasOne(s, codes) }))
}

func (w *world) wantNoCondition(codes []condition.Code) {
	w.t.Helper()
	w.must(w.sides[0].agent.WaitFor(fmt.Sprintf("without any of %s", codes), func(s *api.Status) bool { return !hasOne(s, codes) }))
}

func hasOne(s *api.Status, codes []condition.Code) bool {
	return slices.ContainsFunc(s.Conditions, func(c condition.Condition) bool { return slices.Contains(codes, c.Code) })
}

// A row of differences.md cannot excuse that the stack drops a packet and a shortcut delivers it, unless it names a
// condition.
func TestRowsExcuseNoDroppedPacket(t *testing.T) {
	for row, ok := range map[string]bool{
		"| `layout=balancer scenario=TTL-1`: x | y | `difference=drops`: z | why | - |":                               true,
		"| `layout=balancer scenario=TTL-1`: x | y | `difference=passes`: z | why | - |":                              false,
		"| `layout=balancer scenario=TTL-1`: x | y | `difference=elsewhere,other`: z | why | - |":                     false,
		"| `layout=balancer scenario=TTL-1`: x | y | `difference=passes condition=EdgeBypassesFilter`: z | why | - |": true,
		"| `layout=balancer`: x | y | `difference=drops`: z | why | - |":                                              false,
		"| `layout=balancer scenario=TTL-1 at=noon`: x | y | `difference=drops`: z | why | - |":                       false,
		"| `layout=balancer scenario=TTL-1`: x | y | `difference=vanishes`: z | why | - |":                            false,
		"| `layout=balancer scenario=TTL-1`: x | y | drops | why | - |":                                               false,
	} {
		if _, err := parseListedRow(row); (err == nil) != ok {
			t.Errorf("%s: %v", row, err)
		}
	}
}
