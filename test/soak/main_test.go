// SPDX-License-Identifier: Apache-2.0

// Package soak puts one node through what happens to nodes, and counts what its clients lose: restarts, kills,
// upgrades, lost pins, removed devices, full tables, hostile packets. Without flags it does each once, in order
// (part of make test); with -lasting it draws from them for that time (make soak). docs/operate/life.md has what
// each may cost.
package soak

import (
	"flag"
	"os"
	"testing"
	"time"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

var (
	lastingFlag = flag.Duration("lasting", 0, "draw events at random for this time; 0: each once, in order")
	seedFlag    = flag.Uint64("seed", 0, "seed of the events drawn; 0: from the clock")
	rateFlag    = flag.Int("rate", 3000, "hostile packets per second")
	onlyFlag    = flag.String("only", "", "a regular expression: only events with such a name")
	apiFlag     = flag.Bool("api", false, "the agent follows an API server instead of manifests")
)

// program is the beeline binary under test.
var program string

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(node.Run(m, &program))
}

// soaking reports whether events are drawn.
func soaking() bool { return *lastingFlag > 0 }

// length chooses between a duration of the short form and one of the long form.
func length(short, long time.Duration) time.Duration {
	if soaking() {
		return long
	}
	return short
}
