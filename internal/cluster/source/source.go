// SPDX-License-Identifier: Apache-2.0

// Package source defines the interface of sources of Kubernetes objects. A source sends events, each of which
// takes the receiver from one complete state to the next. Package service interprets the objects.
package source

import (
	"context"
	"fmt"
	"strings"
	"time"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/report/condition"
)

// Source provides the objects that determine where Service traffic goes.
type Source interface {
	// Run sends events until ctx ends, and then returns nil. It waits for the receiver: changes accumulate
	// until an event is received. Run does not return for invalid input, but reports it in an event's
	// Problems.
	Run(ctx context.Context, events chan<- Event) error
}

// Remote is a source that follows a server.
type Remote interface {
	// Remote may be called at any time.
	Remote() Connection
}

// Connection is the state of the connection to the server.
type Connection struct {
	Connected bool `json:"connected"`
	// Since is when Connected last changed.
	Since time.Time `json:"since"`
	// Error is why it is not connected; empty if it is, or before the first attempt.
	Error string `json:"error,omitempty"`
	// LastSeen is when the server last sent an object or a bookmark.
	LastSeen time.Time `json:"lastSeen,omitzero"`
	// WaitingFor lists the kinds that have not been read yet.
	WaitingFor []string `json:"waitingFor,omitempty"`
}

// Counted is a source that counts what it receives.
type Counted interface {
	// Counts may be called at any time.
	Counts() map[service.Kind]Counts
}

// Counts are the counts of one kind of objects since the source was started.
type Counts struct {
	Lists  uint64 // complete ones
	Errors uint64 // failed lists, and watches that ended with an error
	Queued int    // changed objects that the next event contains
}

// Event is one step of a source. The events of one Run form a chain that starts without objects: a receiver
// that applies all Changes holds the source's last valid state.
type Event struct {
	// Changes lead from the state of the previous event to the current one, sorted, each object at most
	// once. They omit objects whose value did not change.
	Changes []service.Change
	// Synced means that the source has been complete at least once, with this event or an earlier one.
	// Until then the receiver must neither program anything nor remove anything old (R4).
	Synced bool
	// Problems are all current problems; they replace those of earlier events. If one of them is an error
	// rather than a warning, the current input has no effect, and the last valid state stays in use.
	Problems Problems
}

// Problem is something in the source that cannot take effect as written.
type Problem struct {
	// File is the name of the file; empty if the source has no files.
	File string
	// Line counts from 1; 0 if unknown.
	Line int
	// Object is the object as printed by service.Ref ("Service default/web"), or the known part; empty if
	// the problem is not about one object.
	Object string
	// Reason names the field, its value, and what to change.
	Reason string
	// Remedy says what to change if Reason does not; empty for the remedy of the condition's kind.
	Remedy string
	// Warning means that the object is still used, or is rightly skipped.
	Warning bool
	// Harmless is a warning about an object that no Service needs.
	Harmless bool
}

// String returns the problem with file:line: first, like a compiler, so that editors find the place.
func (p Problem) String() string {
	var b strings.Builder
	switch {
	case p.File != "" && p.Line > 0:
		fmt.Fprintf(&b, "%s:%d: ", p.File, p.Line)
	case p.File != "":
		fmt.Fprintf(&b, "%s: ", p.File)
	}
	if p.Warning {
		b.WriteString("warning: ")
	}
	if p.Object != "" {
		fmt.Fprintf(&b, "%s: ", p.Object)
	}
	b.WriteString(p.Reason)
	if p.Remedy != "" {
		b.WriteString(": " + p.Remedy)
	}
	return b.String()
}

// Condition returns the problem as a condition.
func (p Problem) Condition() condition.Condition {
	kind := condition.SourceError
	switch {
	case p.Harmless:
		kind = condition.SourceNote
	case p.Warning:
		kind = condition.SourceWarning
	}
	text := Problem{File: p.File, Line: p.Line, Reason: p.Reason}.String()
	c := kind.New("%s", text).At(p.Object)
	if p.Remedy != "" {
		c = c.Do("%s", p.Remedy)
	}
	return c
}

// Problems is an error that lists each problem on its own line.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Warnings returns the number of problems that are neither errors nor harmless.
func (ps Problems) Warnings() int {
	n := 0
	for _, p := range ps {
		if p.Warning && !p.Harmless {
			n++
		}
	}
	return n
}

// Errors returns the number of problems that are not warnings.
func (ps Problems) Errors() int {
	n := 0
	for _, p := range ps {
		if !p.Warning {
			n++
		}
	}
	return n
}
