// SPDX-License-Identifier: Apache-2.0

package hoststack

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCause: what a program's file says about preloading. test/hoststack has programs that run.
func TestCause(t *testing.T) {
	own := compiled(t)
	for _, c := range []struct {
		program *elf.File
		isGo    bool
		want    string
	}{
		{own, false, "the loader did not load it"},
		{own, true, "the loader did not load it"},
		{compiled(t, "-static"), false, "a static program"},
		{compiled(t, "-static"), true, "a static Go program"},
		{compiled(t, "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"), false, "the loader did not load it"}, // the library serves musl, too
	} {
		if why := causeOf(c.program, own, c.isGo); !strings.Contains(why, c.want) {
			t.Errorf("%q, want %q", why, c.want)
		}
	}
	other := compiled(t)
	other.Machine = elf.EM_S390
	if why := causeOf(other, own, false); !strings.Contains(why, "EM_S390") {
		t.Errorf("%q of a program of another machine", why)
	}
}

// compiled returns a program that the C compiler makes with these flags.
func compiled(t *testing.T, flags ...string) *elf.File {
	t.Helper()
	source, path := filepath.Join(t.TempDir(), "main.c"), filepath.Join(t.TempDir(), "main")
	must(t, os.WriteFile(source, []byte("int main(void) { return 0; }\n"), 0o600))
	if out, err := exec.CommandContext(t.Context(), "cc", append(flags, "-o", path, source)...).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	f, err := elf.Open(path)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}
