// SPDX-License-Identifier: Apache-2.0

// Package edge tests how clients outside the cluster reach Services: the replies to a host next to the nodes of
// a lab, with real agents on the nodes. The rules are those of docs/operate/semantics.md.
package edge

import (
	"flag"
	"fmt"
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
	// Tests mostly wait: for agents, GC passes and timeouts. -parallel overrides this.
	if err := flag.Set("test.parallel", strconv.Itoa(3*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	exit := node.Run(m, &program)
	if err := removeIdle(); err != nil {
		fmt.Fprintln(os.Stderr, "removing borrowed worlds:", err)
		exit = 1
	}
	os.Exit(exit)
}
