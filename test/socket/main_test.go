// SPDX-License-Identifier: Apache-2.0

// Package socket tests the socket shortcut as processes see it: what connect(2)
// and getpeername(2) answer in the pods and on the nodes of a lab on which real
// agents run. The rules are those of docs/semantics.md.
package socket

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"beeline.io/beeline/test/lab"
)

// program is the beeline binary that all tests run: that of BEELINE_PROGRAM, or
// one that is built from this tree.
var program = os.Getenv("BEELINE_PROGRAM")

func TestMain(m *testing.M) {
	lab.Main()
	if os.Args[0] == partHeir {
		inherit()
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if program == "" && os.Geteuid() == 0 {
		dir, err := os.MkdirTemp("", "beeline-socket-test-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "beeline")
		build := exec.Command("go", "build", "-o", program, "beeline.io/beeline/cmd/beeline")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "go build of the beeline program (after `make generate`?): %v\n%s", err, out)
			return 1
		}
	}
	return m.Run()
}
