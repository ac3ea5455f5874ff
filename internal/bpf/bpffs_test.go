// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf/pinfs"
)

// TestMountsOwnBPFFS: if there is no BPF file system the agent mounts one, and cleanup unmounts it.
func TestMountsOwnBPFFS(t *testing.T) {
	o := options(t)
	o.BPFFS = filepath.Join(t.TempDir(), "pins")
	mustOpen(t, o).Close()
	if on, err := pinfs.IsFS(o.BPFFS, unix.BPF_FS_MAGIC); !on || err != nil {
		t.Fatalf("not mounted: %v", err)
	}
	mustOpen(t, o).Close() // a second start does not mount again
	must(t, Cleanup(o.BPFFS, nil, o.Components...))
	wantGone(t, o.BPFFS)
	for path, reason := range map[string]string{"relative/path": "absolute", "/sys/fs/bpf/with.dot": "dots"} {
		if err := pinfs.Prepare(path, nil); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
