// SPDX-License-Identifier: Apache-2.0

// Package source says what every source of Kubernetes objects has in common:
// it sends events, each of which takes the receiver from one complete state to
// the next. What the objects mean is decided in package service.
package source

import (
	"context"
	"fmt"
	"strings"
	"time"

	"beeline.io/beeline/internal/service"
)

// Source delivers the objects that decide where Service traffic goes.
type Source interface {
	// Run sends events until ctx ends, and then returns nil. It waits for the
	// receiver: while an event is not taken, the next one gathers all that
	// happens. A bad input is not a reason to return, but an event with Problems.
	Run(ctx context.Context, events chan<- Event) error
}

// Remote is a source that follows a server.
type Remote interface {
	// Remote may be called at any time.
	Remote() Connection
}

// Connection is how such a source stands with its server.
type Connection struct {
	Connected bool `json:"connected"`
	// Since is when Connected became what it is.
	Since time.Time `json:"since"`
	// Error says why it is not connected; empty if it is, or nothing was tried yet.
	Error string `json:"error,omitempty"`
	// LastHeard is when the server last sent an object or a sign of life.
	LastHeard time.Time `json:"lastHeard,omitzero"`
	// WaitingFor lists the kinds that have not been read yet.
	WaitingFor []string `json:"waitingFor,omitempty"`
}

// Event is one step of a source. The events of one Run are a chain that starts
// with no objects: a receiver that applies each Changes to what it had holds
// the source's last good state.
type Event struct {
	// Changes lead from the state of the previous event to the present one,
	// sorted, each object at most once. An object that did not change in value
	// is not among them.
	Changes []service.Change
	// Synced says that the source has been complete at least once, with this
	// event or an earlier one. Before that nothing may be programmed and nothing
	// old removed (R4).
	Synced bool
	// Problems are all that is wrong at present; they replace those of earlier
	// events. If one of them is an error and not a warning, then what the source
	// holds now is not in force: the last good state is.
	Problems Problems
}

// Problem is one thing that a source could not take as it is written.
type Problem struct {
	// File is where it is written; empty if the source has no files.
	File string
	// Line counts from 1; 0 if no line can be named.
	Line int
	// Object is the object as service.Ref writes it ("Service default/web"), or
	// as much as is known of it; empty if it is not about one object.
	Object string
	// Reason names the field, what it says, and what to change.
	Reason string
	// Warning: the object counts nevertheless, or is rightly left out.
	Warning bool
	// Harmless: a warning about an object that no Service needs.
	Harmless bool
}

// String gives file:line: first, as compilers do, so that editors find the place.
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
	return b.String()
}

// Problems is an error that names each of them on a line of its own.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Warnings says how many are neither errors nor harmless.
func (ps Problems) Warnings() int {
	n := 0
	for _, p := range ps {
		if p.Warning && !p.Harmless {
			n++
		}
	}
	return n
}

// Errors says how many are not mere warnings.
func (ps Problems) Errors() int {
	n := 0
	for _, p := range ps {
		if !p.Warning {
			n++
		}
	}
	return n
}
