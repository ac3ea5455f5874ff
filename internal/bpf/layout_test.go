// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const otherVersion = "tables_v1"

// TestOtherVersionIsRefused: an agent refuses pins of another layout before it makes anything; the agent
// that pinned them is not refused afterwards (R37). A directory without pins is not refused.
func TestOtherVersionIsRefused(t *testing.T) {
	for _, test := range []struct {
		name    string
		pins    bool // in the directory of the other layout
		refused bool
	}{
		{"pins", true, true},
		{"an empty directory", false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := options(t)
			other := filepath.Join(o.BPFFS, otherVersion)
			must(t, os.MkdirAll(other, 0o700))
			if test.pins {
				pinMap(t, filepath.Join(other, "frontends"), 4)
			}
			d, err := Open(o)
			if !test.refused {
				must(t, err)
				d.Close()
				return
			}
			if err == nil || !strings.Contains(err.Error(), otherVersion+" has a layout that this version") {
				t.Fatalf("not refused: %v", err)
			}
			entries, err := os.ReadDir(o.BPFFS)
			must(t, err)
			if len(entries) != 1 || entries[0].Name() != otherVersion {
				t.Errorf("it left %v beside %s", entries, otherVersion)
			}
			if _, err := OpenTables(o.BPFFS); err == nil || !strings.Contains(err.Error(), "another layout") {
				t.Errorf("a command on these tables returns %v", err)
			}
		})
	}
}

// TestFailedOpenLeavesNothing: if an agent fails and there was none before, it leaves neither pins nor a
// directory nor a mount; if there are pins, it leaves these.
func TestFailedOpenLeavesNothing(t *testing.T) {
	on := options(t)
	on.CgroupRoot = t.TempDir() // refused after the directory has been created
	off := on
	off.BPFFS = filepath.Join(t.TempDir(), "pins")
	used := on
	used.BPFFS = t.TempDir()
	must(t, os.WriteFile(filepath.Join(used.BPFFS, "file"), nil, 0o600))
	for _, test := range []struct {
		name   string
		o      Options
		reason string
		gone   string
	}{
		{"on a BPF file system", on, "not a cgroup v2 directory", on.BPFFS},
		{"on a mount of its own", off, "not a cgroup v2 directory", off.BPFFS},
		{"on a directory with files", used, "would hide", filepath.Join(used.BPFFS, "links")},
	} {
		if _, err := Open(test.o); err == nil || !strings.Contains(err.Error(), test.reason) {
			t.Errorf("%s: %v, not %q", test.name, err, test.reason)
		}
		wantGone(t, test.gone)
	}
	if _, err := os.Stat(filepath.Join(used.BPFFS, "file")); err != nil {
		t.Error(err)
	}
	kept := options(t)
	mustOpen(t, kept).Close()
	kept.CgroupRoot = on.CgroupRoot
	if _, err := Open(kept); err == nil {
		t.Error("no cgroup v2 directory, and no error")
	}
	if _, err := os.Stat(TablePath(kept.BPFFS, SockMapSlots)); err != nil {
		t.Errorf("the tables of an earlier agent: %v", err)
	}
}
