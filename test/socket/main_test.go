// SPDX-License-Identifier: Apache-2.0

// Package socket tests the socket shortcut as processes see it: the results of connect(2) and getpeername(2) in
// the pods and on the nodes of a lab with real agents. The rules are those of docs/operate/semantics.md.
package socket

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
	switch os.Args[0] {
	case partHeir:
		inherit()
	case partEtc:
		runWithEtc(os.Args[1], os.Args[2], os.Args[3:])
	case partGoClient:
		goClient(os.Args[1:])
	}
	os.Exit(node.Run(m, &program))
}
