// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestProgramsAreReplacedInPlace: the links stay, their programs change. A link whose cgroup was removed or
// replaced is made again.
func TestProgramsAreReplacedInPlace(t *testing.T) {
	o := options(t)
	attach := func() []Attachment {
		t.Helper()
		d := mustOpen(t, o)
		defer d.Close()
		must(t, d.Attach())
		all, err := Attachments(o.BPFFS, o.Components...)
		if err != nil || len(all) != d.Hooks() {
			t.Fatalf("%d attachments of %d, %v", len(all), d.Hooks(), err)
		}
		return all
	}
	first, second := attach(), attach()
	for i := range first {
		if first[i].LinkID != second[i].LinkID || first[i].ProgramID == second[i].ProgramID || second[i].Cgroup != o.CgroupRoot {
			t.Errorf("replaced: %+v by %+v", first[i], second[i])
		}
	}
	child := filepath.Join(o.CgroupRoot, "child")
	must(t, os.Mkdir(child, 0o755))
	root := o.CgroupRoot
	o.CgroupRoot = child
	if moved := attach(); moved[0].Cgroup != child {
		t.Errorf("moved to %s: %+v", child, moved)
	}
	must(t, os.Remove(child))
	detached := false
	for deadline := time.Now().Add(time.Minute); !detached && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		all, err := Attachments(o.BPFFS, o.Components...) // the kernel detaches asynchronously
		must(t, err)
		detached = all[0].Detached
	}
	if !detached {
		t.Error("the links of a removed cgroup are not reported as detached")
	}
	o.CgroupRoot = root
	if again := attach(); again[0].Detached || again[0].Cgroup != root {
		t.Errorf("attached again: %+v", again)
	}
	must(t, Cleanup(o.BPFFS, nil, o.Components...))
	wantGone(t, o.BPFFS)
}

// TestOtherBeelineIsRefused: two of them at one cgroup would both rewrite.
func TestOtherBeelineIsRefused(t *testing.T) {
	o := options(t)
	first := mustOpen(t, o)
	must(t, first.Attach())
	other := o
	other.BPFFS += "_other"
	if _, err := Open(other); err == nil || !strings.Contains(err.Error(), "another Beeline") {
		t.Errorf("second: %v", err)
	}
	wantGone(t, other.BPFFS)
	first.Close()
	must(t, Cleanup(o.BPFFS, nil, o.Components...))
	if err := mustOpen(t, other).Attach(); err != nil {
		t.Errorf("after the first is gone: %v", err)
	}
}
