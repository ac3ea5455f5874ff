// SPDX-License-Identifier: Apache-2.0

package harness

import "context"

// A Part measures one thing, in labs of its own.
type Part struct {
	Name string // as in its rows
	Text string
	// Named means that it is measured only if selected by name.
	Named bool
	Run   func(context.Context, *Bench) error
	Print func(*Report)
}
