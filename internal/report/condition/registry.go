// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
)

// Kind holds what all conditions of a code share.
type Kind struct {
	Code     Code
	Severity Severity
	// Meaning says what is wrong and what the consequence is, for docs/operate/conditions.md.
	Meaning string
	// Remedy says what to change, unless a condition has its own remedy.
	Remedy string
	// Bounded means that the objects are tables, devices, hooks or addresses of the node, so that metrics may
	// name them. There may be any number of Services and Pods.
	Bounded bool
}

var registered []*Kind

// register is called only by the variables of kinds.go, so that every condition has a registered code.
func register(code Code, severity Severity, meaning, remedy string) *Kind {
	k := &Kind{Code: code, Severity: severity, Meaning: meaning, Remedy: remedy}
	registered = append(registered, k)
	return k
}

// ofNode marks a kind as Bounded.
func (k *Kind) ofNode() *Kind {
	k.Bounded = true
	return k
}

// KindOf returns the kind of a code; nil if it is not registered.
func KindOf(code Code) *Kind {
	if i := code.place(); i >= 0 {
		return registered[i]
	}
	return nil
}

// Kinds returns all kinds, in the order of kinds.go.
func Kinds() []*Kind { return slices.Clone(registered) }

// place returns the position of a code in the registration order.
func (c Code) place() int {
	return slices.IndexFunc(registered, func(k *Kind) bool { return k.Code == c })
}

// New returns a condition of the kind.
func (k *Kind) New(format string, args ...any) Condition {
	return Condition{Code: k.Code, Severity: k.Severity, Message: fmt.Sprintf(format, args...), Remedy: k.Remedy}
}

// Log writes what will be a condition of the kind to the log, in other words, at the level of its severity.
func (k *Kind) Log(log *slog.Logger, message string, args ...any) {
	log.Log(context.Background(), k.Severity.level(), message, append(args, "code", string(k.Code))...)
}
