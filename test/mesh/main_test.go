// SPDX-License-Identifier: Apache-2.0

// Package mesh tests the sidecar shortcut: applications of pods in a lab with real proxies beside them.
package mesh

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
