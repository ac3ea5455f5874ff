// SPDX-License-Identifier: Apache-2.0

// Package edge tests how clients outside of the cluster reach Services: what a
// host beside the nodes of a lab is answered, with real agents on the nodes. The
// rules are those of docs/operate/semantics.md.
package edge

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// program is the beeline binary that all tests run.
var program string

func TestMain(m *testing.M) {
	lab.Main()
	// Most of a test is waiting: for agents, GC passes and timeouts. -parallel wins over this.
	if err := flag.Set("test.parallel", strconv.Itoa(3*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	os.Exit(node.Run(m, &program))
}
