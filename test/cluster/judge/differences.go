// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"beeline.io/beeline/test/node"
)

// Pattern restricts the values of facts: each fact that it names has one of its values. It is written as
// "from=pod,node port=known"; "any" is the pattern of everything.
type Pattern map[string][]string

func (p Pattern) matches(facts map[string]string) bool {
	for name, values := range p {
		if !slices.Contains(values, facts[name]) {
			return false
		}
	}
	return true
}

func parsePattern(text string, known []string) (Pattern, error) {
	p := Pattern{}
	if text == "any" {
		return p, nil
	}
	for term := range strings.FieldsSeq(text) {
		name, values, ok := strings.Cut(term, "=")
		if !ok || values == "" {
			return nil, fmt.Errorf("%q: write name=value or name=value,value", term)
		}
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("%q: there is no fact %q; there are %s", term, name, strings.Join(known, ", "))
		}
		if p[name] != nil {
			return nil, fmt.Errorf("%q occurs twice", name)
		}
		p[name] = strings.Split(values, ",")
	}
	if len(p) == 0 {
		return nil, errors.New("empty: write any for everything")
	}
	return p, nil
}

// Difference is a row of docs/operate/differences.md that the judge can check: if a case matches Case and
// kube-proxy's result matches KubeProxy, Beeline's result differs.
type Difference struct {
	Line      int // of the document
	Case      Pattern
	KubeProxy Pattern // of the observation: result, source, backend
	// Beeline's result: the changed facts of the observation, or what kube-proxy does in another case.
	Becomes map[string]string
	As      map[string]string
}

var (
	caseFacts        = slices.Sorted(maps.Keys((&Case{Scenario: Scenario{}, Probe: Probe{From: judged}}).Facts()))
	observationFacts = []string{"result", "backend", "place", "source"}
	probeFacts       = []string{"to", "port", "protocol", "family", "socket"}
)

// facts are an observation as facts of patterns; the client itself as the backend is "self".
func (o Observation) facts(c *Case) map[string]string {
	backend := o.Backend
	name, _, _ := strings.Cut(backend, " ")
	if name == c.Probe.From {
		backend = "self"
	}
	place := "none"
	if o.Backend != "" {
		place = map[bool]string{true: "here", false: "elsewhere"}[isLocal(name)]
	}
	if backend == "self" && clientKind(c.Probe.From) == "pod" {
		place = "self"
	}
	return map[string]string{"result": o.Result, "backend": backend, "place": place, "source": o.Source}
}

// ReadDifferences reads the first table of docs/operate/differences.md.
func ReadDifferences() ([]*Difference, error) {
	sources, err := node.Sources()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(sources, "docs", "operate", "differences.md")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	rows, err := parseDifferences(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return rows, nil
}

func parseDifferences(text string) ([]*Difference, error) {
	var rows []*Difference
	var errs []error
	inTable := 0
	for i, line := range strings.Split(text, "\n") {
		if !strings.HasPrefix(line, "|") {
			if inTable > 0 {
				break
			}
			continue
		}
		if inTable++; inTable <= 2 {
			continue // its head
		}
		row, err := parseDifference(line)
		if err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", i+1, err))
			continue
		}
		row.Line = i + 1
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		errs = append(errs, errors.New("the first table has no rows"))
	}
	return rows, errors.Join(errs...)
}

// parseDifference parses "| `case` words | `observation`: words | `what instead`: words | why | switch |".
func parseDifference(line string) (*Difference, error) {
	cells := strings.Split(strings.Trim(line, "| "), " | ")
	if len(cells) != 5 {
		return nil, fmt.Errorf("%d cells, not case, kube-proxy, Beeline, why, switch", len(cells))
	}
	var formal [3]string
	for i := range formal {
		parts := strings.SplitN(cells[i], "`", 3)
		if len(parts) != 3 || parts[0] != "" {
			return nil, fmt.Errorf("cell %d does not begin with a pattern in backquotes", i+1)
		}
		formal[i] = parts[1]
	}
	var d Difference
	var err error
	if d.Case, err = parsePattern(formal[0], caseFacts); err != nil {
		return nil, fmt.Errorf("case: %w", err)
	}
	if d.KubeProxy, err = parsePattern(formal[1], observationFacts); err != nil {
		return nil, fmt.Errorf("what kube-proxy does: %w", err)
	}
	if other, ok := strings.CutPrefix(formal[2], "as "); ok {
		d.As, err = parseChange(other, probeFacts)
	} else {
		d.Becomes, err = parseChange(formal[2], observationFacts)
	}
	if err != nil {
		return nil, fmt.Errorf("what Beeline does: %w", err)
	}
	return &d, nil
}

// parseChange parses the facts' new values: one each.
func parseChange(text string, known []string) (map[string]string, error) {
	p, err := parsePattern(text, known)
	if err != nil {
		return nil, err
	}
	change := map[string]string{}
	for name, values := range p {
		if len(values) != 1 {
			return nil, fmt.Errorf("%s becomes one of %s: name one", name, strings.Join(values, ", "))
		}
		change[name] = values[0]
	}
	return change, nil
}

// differs returns the row that applies to an observation, or nil.
func differs(rows []*Difference, c *Case, o Observation) *Difference {
	facts, seen := c.Facts(), o.facts(c)
	for _, row := range rows {
		if row.Case.matches(facts) && row.KubeProxy.matches(seen) {
			return row
		}
	}
	return nil
}

// become is Beeline's expected observation of a case, given kube-proxy's.
func (d *Difference) become(c *Case, o Observation) Observation {
	if result, ok := d.Becomes["result"]; ok && result != o.Result {
		o = Observation{Result: result}
	}
	if backend, ok := d.Becomes["backend"]; ok {
		o.Backend = backend
		if backend == "self" {
			o.Backend = c.Probe.From
		}
	}
	if source, ok := d.Becomes["source"]; ok {
		o.Source = source
	}
	return o
}

// asked is the probe whose outcome with kube-proxy is expected of Beeline here.
func (d *Difference) asked(p Probe) Probe {
	for name, field := range map[string]*string{"to": &p.To, "port": &p.Port, "protocol": &p.Protocol, "family": &p.Family, "socket": &p.Socket} {
		if value, ok := d.As[name]; ok {
			*field = value
		}
	}
	return p
}
