// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCleanupTouchesNothingElse: what is not Beeline's by name stays.
func TestCleanupTouchesNothingElse(t *testing.T) {
	folder := t.TempDir()
	mine := filepath.Join(folder, "links")
	must(t, os.Mkdir(mine, 0o755))
	if err := Cleanup(folder, nil); err == nil || !strings.Contains(err.Error(), "not on a BPF file system") {
		t.Errorf("an ordinary folder: %v", err)
	}
	o := options(t)
	d := mustOpen(t, o)
	foreign := filepath.Join(o.BPFFS, "links", "foreign")
	pinMap(t, foreign, 4)
	d.Close()
	must(t, Cleanup(o.BPFFS, nil, o.Components...))
	for _, path := range []string{mine, foreign} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s is gone: %v", path, err)
		}
	}
	wantGone(t, TablePath(o.BPFFS, SockMapSlots))
}
