// SPDX-License-Identifier: Apache-2.0

package node

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Sources is the folder of Beeline's sources, also for a module that only depends on it.
var Sources = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "beeline.io/beeline").Output()
	if err != nil {
		return "", fmt.Errorf("finding Beeline's sources: go list -m beeline.io/beeline: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
})

// Build returns the beeline program to test: BEELINE_PROGRAM, or one built into a folder, in its own module,
// with the dependencies that users get.
func Build(folder string) (program string, err error) {
	if program := os.Getenv("BEELINE_PROGRAM"); program != "" {
		// Stat also records the file for go test, which runs a test again when such a file has changed.
		if _, err := os.Stat(program); err != nil {
			return "", fmt.Errorf("BEELINE_PROGRAM: %w", err)
		}
		return program, nil
	}
	return compile(folder, "beeline")
}

// compile builds a program of the product's module into a folder.
func compile(folder, name string) (program string, err error) {
	sources, err := Sources()
	if err != nil {
		return "", err
	}
	program = filepath.Join(folder, name)
	out, err := exec.Command("go", "build", "-C", sources, "-o", program, "./cmd/"+name).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build of the %s program (after `make generate`?): %w\n%s", name, err, out)
	}
	return program, nil
}

// LabProgram builds the beeline-lab program for a test, or fails it.
func LabProgram(t testing.TB) string {
	t.Helper()
	program, err := compile(t.TempDir(), "beeline-lab")
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// Program is Build for a test, or fails it.
func Program(t testing.TB) string {
	t.Helper()
	program, err := Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// Run runs a package's tests, and sets the program for them to start. Without root it builds none: each test that
// needs one fails.
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

// RunParallel is Run for tests that mostly wait: for agents, GC passes and timeouts. -parallel overrides how many run
// at a time.
func RunParallel(m *testing.M, program *string) (exit int) {
	if err := flag.Set("test.parallel", strconv.Itoa(3*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	return Run(m, program)
}

// Log collects what processes print.
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
