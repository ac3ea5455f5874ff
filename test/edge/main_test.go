// SPDX-License-Identifier: Apache-2.0

// Package edge tests how clients outside the cluster reach Services: the replies to a host next to the nodes of
// a lab, with real agents on the nodes. The rules are those of docs/operate/semantics.md.
package edge

import (
	"fmt"
	"os"
	"testing"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// program is the beeline binary that all tests run.
var program string

func TestMain(m *testing.M) {
	lab.Main()
	exit := node.RunParallel(m, &program)
	if err := removeIdle(); err != nil {
		fmt.Fprintln(os.Stderr, "removing borrowed worlds:", err)
		exit = 1
	}
	os.Exit(exit)
}
