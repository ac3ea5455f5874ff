// SPDX-License-Identifier: Apache-2.0

// Package hoststack tests the agent's part of the host stack: real programs with the preload library, in pods of a lab.
package hoststack

import (
	"os"
	"testing"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// program is the beeline binary that all tests run.
var program string

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(node.Run(m, &program))
}
