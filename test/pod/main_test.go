// SPDX-License-Identifier: Apache-2.0

// Package pod tests the pod shortcut: packets between pods of a lab whose nodes have real agents, with the netfilter
// rules of a Kubernetes node in their way.
package pod

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
	os.Exit(node.RunParallel(m, &program))
}
