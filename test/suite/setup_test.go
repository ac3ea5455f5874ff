// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// scripts/setup retries for minutes what may succeed later, modules that it cannot fetch, and not what a retry
// does not change: a missing generated file after a failed `go generate`.
func TestSetupTriesAgain(t *testing.T) {
	script, err := filepath.Abs("../../scripts/setup")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, goMod, source string
		again               bool
	}{
		{"a generated file is missing", "", "import _ \"embed\"\n//go:embed generated.o\nvar _ []byte", false},
		{"all is there", "", "", false},
		{"a module is missing", "require example.com/nowhere v1.0.0", "import _ \"example.com/nowhere\"", true},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for name, text := range map[string]string{
				"go.mod":  "module example.com/m\n\ngo 1.21\n" + c.goMod + "\n",
				"main.go": "package main\n" + c.source + "\nfunc main() {}\n",
			} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if again := triesAgain(t, script, dir); again != c.again {
				t.Errorf("it retries: %v, want %v", again, c.again)
			}
		})
	}
}

// triesAgain runs the script for the modules of a folder until it ends or announces a retry.
func triesAgain(t *testing.T, script, dir string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, script, "--modules", dir)
	cmd.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=-mod=mod", "GOWORK=off")
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "again in") {
			cmd.Process.Kill()
			cmd.Wait()
			return true
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v", err)
	}
	return false
}
