// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/plural"
	"beeline.io/beeline/internal/util/printable"
)

// exitCodes maps the severity of conditions to exit codes (docs/operate/conditions.md).
var exitCodes = map[condition.Severity]int{
	condition.Error:   exitErrors,
	condition.Warning: exitWarnings,
}

// judged returns the exit code for the worst severity, or nil without errors and warnings.
func judged(conditions condition.List) error {
	for _, severity := range condition.Severities {
		if code := exitCodes[severity]; code != 0 && conditions.Count(severity) > 0 {
			return exitError{code: code}
		}
	}
	return nil
}

// Number of conditions of one kind that status names, without -v and with it.
const (
	fewConditions  = 3
	mostConditions = 10
)

// conditionsText prints a headline and conditions, worst first, at most `most` of each group with the same code and
// remedy, followed by the remedy.
func conditionsText(w io.Writer, headline string, all condition.List, most int) {
	fmt.Fprintln(w, headline)
	for len(all) > 0 {
		same := 1
		for same < len(all) && all[same].Code == all[0].Code && all[same].Remedy == all[0].Remedy {
			same++
		}
		for _, c := range all[:min(same, most)] {
			fmt.Fprintf(w, "%-7s  %s: %s\n", c.Severity, c.Code, printable.Line(about(c)))
		}
		if same > most {
			fmt.Fprintf(w, "         ... and %d more of these: -o json lists all\n", same-most)
		}
		if remedy := all[0].Remedy; remedy != "" && all[0].Severity != condition.Info {
			fmt.Fprintf(w, "         what to do: %s\n", printable.Line(remedy))
		}
		all = all[same:]
	}
}

// about returns the message, preceded by the object if the message does not name it.
func about(c condition.Condition) string {
	if c.Object == "" || strings.Contains(c.Message, c.Object) {
		return c.Message
	}
	return c.Object + ": " + c.Message
}

// headline counts errors and warnings. It returns "All is well." without any.
func headline(all condition.List) string {
	errors, warnings := all.Count(condition.Error), all.Count(condition.Warning)
	switch {
	case errors+warnings == 0:
		return "All is well."
	case errors == 0:
		return plural.Of(warnings, "warning") + "."
	case warnings == 0:
		return plural.Of(errors, "error") + "."
	}
	return plural.Of(errors, "error") + ", " + plural.Of(warnings, "warning") + "."
}
