// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
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

// Run runs a package's tests with a program for them to start; without root there
// is none, and no test that needs one.
func Run(m *testing.M, program *string) (exit int) {
	if os.Geteuid() != 0 {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "beeline-test-")
	if err == nil {
		defer os.RemoveAll(dir)
		*program, err = Build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// Log gathers what processes print.
type Log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
