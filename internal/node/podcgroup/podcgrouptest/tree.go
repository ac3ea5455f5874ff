// SPDX-License-Identifier: Apache-2.0

// Package podcgrouptest makes directories like those of cgroups.
package podcgrouptest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Tree creates directories; "dir: 1 2" contains these processes.
func Tree(t testing.TB, root string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		dir, pids, _ := strings.Cut(line, ":")
		path := filepath.Join(root, dir)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		text := strings.Join(append(strings.Fields(pids), ""), "\n")
		if err := os.WriteFile(filepath.Join(path, "cgroup.procs"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

const patience = 30 * time.Second

// Eventually waits until a condition holds.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not after %v: %s", patience, what)
		}
	}
}
