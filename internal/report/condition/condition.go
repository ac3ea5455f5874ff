// SPDX-License-Identifier: Apache-2.0

// Package condition defines how Beeline reports problems. `beeline status` and `beeline check`
// print conditions, and their exit codes follow from the severities. kinds.go registers every code,
// and docs/operate/conditions.md is generated from it.
package condition

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
)

// Severity is how bad a condition is.
type Severity string

// The severities, the worst first.
const (
	// Error means that some traffic is not served as objects or flags request, or that changes do
	// not take effect.
	Error Severity = "error"
	// Warning means that traffic is served, but something will fail later or does not take effect
	// as written.
	Warning Severity = "warning"
	// Info needs no action.
	Info Severity = "info"
)

// Severities lists them, the worst first.
var Severities = []Severity{Error, Warning, Info}

// level returns the level at which the log has conditions of the severity.
func (s Severity) level() slog.Level {
	switch s {
	case Error:
		return slog.LevelError
	case Warning:
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// rank returns the order of a severity: 0 is the worst.
func (s Severity) rank() int { return slices.Index(Severities, s) }

// Code identifies a kind of condition. It does not change between versions, so that Events, metrics and alerts
// can refer to it.
type Code string

// Condition is one problem of an object or of the agent.
type Condition struct {
	Code     Code     `json:"code"`
	Severity Severity `json:"severity"`
	// Object is what the condition is about: a Kubernetes object as service.Ref prints it, a
	// device, a table or a hook. Empty for the agent as a whole.
	Object string `json:"object,omitempty"`
	// Message says what is wrong and what the consequence is.
	Message string `json:"message"`
	// Remedy says what to change.
	Remedy string `json:"remedy,omitempty"`
}

// At returns the condition with an object.
func (c Condition) At(object string) Condition {
	c.Object = object
	return c
}

// Do returns the condition with its own remedy instead of its kind's.
func (c Condition) Do(format string, args ...any) Condition {
	c.Remedy = fmt.Sprintf(format, args...)
	return c
}

// Text returns the message and the remedy in one line.
func (c Condition) Text() string {
	if c.Remedy == "" {
		return c.Message
	}
	return c.Message + ": " + c.Remedy
}

// String returns everything except the severity in one line.
func (c Condition) String() string {
	if c.Object == "" {
		return fmt.Sprintf("%s: %s", c.Code, c.Text())
	}
	return fmt.Sprintf("%s: %s: %s", c.Code, c.Object, c.Text())
}

// Log writes the condition to the log of the agent at the level of its severity. by names the part of the agent that
// reports it.
func (c Condition) Log(log *slog.Logger, by string) {
	args := []any{"code", string(c.Code)}
	if c.Object != "" {
		args = append(args, "object", c.Object)
	}
	if c.Remedy != "" {
		args = append(args, "remedy", c.Remedy)
	}
	log.Log(context.Background(), c.Severity.level(), by+": "+c.Message, args...)
}

// Compare orders conditions: the worst first, then by registration, object and text.
func Compare(a, b Condition) int {
	return cmp.Or(cmp.Compare(a.Severity.rank(), b.Severity.rank()), cmp.Compare(a.Code.place(), b.Code.place()),
		strings.Compare(a.Object, b.Object), strings.Compare(a.Message, b.Message), strings.Compare(a.Remedy, b.Remedy))
}

// List is a set of conditions.
type List []Condition

// Sort sorts a list and removes duplicates.
func (l List) Sort() List {
	slices.SortFunc(l, Compare)
	return slices.Compact(l)
}

// Wrong returns the errors and warnings.
func (l List) Wrong() List {
	return slices.DeleteFunc(slices.Clone(l), func(c Condition) bool { return c.Severity == Info })
}

// Count returns the number of conditions with a severity.
func (l List) Count(s Severity) (n int) {
	for _, c := range l {
		if c.Severity == s {
			n++
		}
	}
	return n
}

// Has reports whether a kind of condition is in the list.
func (l List) Has(k *Kind) bool { return l.HasCode(k.Code) }

// HasCode reports whether a condition with a code is in the list.
func (l List) HasCode(code Code) bool {
	return slices.ContainsFunc(l, func(c Condition) bool { return c.Code == code })
}

// String returns one line per condition.
func (l List) String() string {
	lines := make([]string, len(l))
	for i, c := range l {
		lines[i] = c.String()
	}
	return strings.Join(lines, "\n")
}
