// SPDX-License-Identifier: Apache-2.0

// Package netdevtest has settings of a network namespace for tests.
package netdevtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Sysctls makes a tree of settings like that of /proc/sys/net. One is another, as the kernel
// has it when that is set, where its value is a path.
func Sysctls(t *testing.T, settings ...string) (root string) {
	t.Helper()
	root = t.TempDir()
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(value, "/") {
			if err := os.Symlink(filepath.Join(root, value), path); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(path, []byte(value+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// WantSysctls compares settings with those below root.
func WantSysctls(t *testing.T, root string, settings ...string) {
	t.Helper()
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil || strings.TrimSpace(string(text)) != value {
			t.Errorf("%s is %q (%v), want %s", name, text, err, value)
		}
	}
}
