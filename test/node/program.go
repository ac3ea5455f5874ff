// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Build returns the beeline program to test: that of BEELINE_PROGRAM, or one
// built from this tree into a folder.
func Build(folder string) (program string, err error) {
	if program := os.Getenv("BEELINE_PROGRAM"); program != "" {
		return program, nil
	}
	program = filepath.Join(folder, "beeline")
	out, err := exec.Command("go", "build", "-o", program, "beeline.io/beeline/cmd/beeline").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build of the beeline program (after `make generate`?): %w\n%s", err, out)
	}
	return program, nil
}
