// SPDX-License-Identifier: Apache-2.0

package main

import "context"

// A part measures one thing, in labs of its own.
type part struct {
	name string // as in its rows
	text string
	// named means that it is measured only if selected by name.
	named bool
	run   func(context.Context, *bench) error
	print func(*report)
}
