// SPDX-License-Identifier: Apache-2.0

// Package offload tests flow offload: TCP and UDP flows between hosts of a lab through a node that forwards them, with
// NAT by the kernel. Each case checks what the two ends of a flow see. It holds on the plain stack, too: with -stack
// the node has no agent, and only the counters that prove the shortcut are left out.
package offload

import (
	"flag"
	"os"
	"testing"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

var (
	// program is the beeline binary that all tests run.
	program string
	stack   = flag.Bool("stack", false, "run the cases on the plain stack, without an agent")
)

func TestMain(m *testing.M) {
	lab.Main()
	flag.Parse()
	os.Exit(node.Run(m, &program))
}
