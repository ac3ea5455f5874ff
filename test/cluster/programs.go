// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// root is the folder of Beeline's sources, which this module is built with.
var root = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "beeline.io/beeline").Output()
	if err != nil {
		return "", fmt.Errorf("finding Beeline's sources: go list -m beeline.io/beeline: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
})

// Program is the path of the control plane's program, which make builds: it
// takes minutes where nothing is cached.
func Program() (string, error) {
	folder, err := root()
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, "build", "controlplane")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the control plane's program %s is missing: make it with `make controlplane`", path)
	} else if err != nil {
		return "", err
	}
	return path, nil
}

// BuildBeeline returns the beeline program to test: that of BEELINE_PROGRAM, or
// one built into a folder. It is built in its own module, with the dependencies
// that users get.
func BuildBeeline(folder string) (string, error) {
	if program := os.Getenv("BEELINE_PROGRAM"); program != "" {
		return program, nil
	}
	sources, err := root()
	if err != nil {
		return "", err
	}
	program := filepath.Join(folder, "beeline")
	out, err := exec.Command("go", "build", "-C", sources, "-o", program, "./cmd/beeline").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build of the beeline program (after `make generate`?): %w\n%s", err, out)
	}
	return program, nil
}
