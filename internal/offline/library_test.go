// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A copy replaces the former one, which stays with those that have it open, and leaves nothing else.
func TestInstallLibrary(t *testing.T) {
	from, dir := filepath.Join(t.TempDir(), "new"), t.TempDir()
	path := filepath.Join(dir, LibraryName)
	for name, text := range map[string]string{from: "new", path: "former"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	former, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer former.Close()
	if got, size, err := InstallLibrary(from, dir); err != nil || got != path || size != 3 {
		t.Fatalf("installed %s, %d bytes: %v", got, size, err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "new" {
		t.Errorf("the library is %q: %v", text, err)
	}
	var open [16]byte
	if n, _ := former.Read(open[:]); string(open[:n]) != "former" {
		t.Errorf("the open file is %q", open[:n])
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("the directory has %v: %v", entries, err)
	}
	if info, err := entries[0].Info(); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode %v: %v", info.Mode(), err)
	}
}

// An error says what to change, and leaves no file.
func TestInstallLibraryFails(t *testing.T) {
	library, taken := filepath.Join(t.TempDir(), "library"), t.TempDir()
	if err := os.WriteFile(library, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(taken, LibraryName, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, dir, want string }{
		{filepath.Join(taken, "missing"), taken, "`make hoststack` builds it"},
		{library, filepath.Join(taken, "missing"), "create the directory, or mount a volume"},
		{library, taken, "file exists"},
		{taken, taken, "is a directory"},
	} {
		if _, _, err := InstallLibrary(c.from, c.dir); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s into %s: %v", c.from, c.dir, err)
		}
		if entries, err := os.ReadDir(taken); err != nil || len(entries) != 1 {
			t.Errorf("%s into %s leaves %v: %v", c.from, c.dir, entries, err)
		}
	}
}
