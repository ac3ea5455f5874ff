// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"beeline.io/beeline/internal/bpf/pinfs"
	"github.com/cilium/ebpf"
)

// TestSecondAgentIsRefused: a second agent is refused with the pid of the first.
func TestSecondAgentIsRefused(t *testing.T) {
	o := options(t)
	d := mustOpen(t, o)
	var locked *pinfs.LockedError
	if _, err := Open(o); !errors.As(err, &locked) || locked.PID != os.Getpid() {
		t.Errorf("second agent: %v", err)
	}
	if err := Cleanup(o.BPFFS, nil, o.Components...); !errors.As(err, &locked) {
		t.Errorf("cleanup while an agent runs: %v", err)
	}
	d.Close()
	mustOpen(t, o)
}

// TestOtherLayoutIsRefused: the error for another layout has the remedy.
func TestOtherLayoutIsRefused(t *testing.T) {
	o := options(t)
	mustOpen(t, o).Close()
	path := TablePath(o.BPFFS, SockMapBackends)
	must(t, os.Remove(path))
	pinMap(t, path, 48)
	if _, err := Open(o); err == nil || !strings.Contains(err.Error(), "beeline cleanup") {
		t.Errorf("error %v", err)
	}
	must(t, Cleanup(o.BPFFS, nil, o.Components...))
	mustOpen(t, o)
}

// TestFormerTablesAreRemoved: the pins of tables that only an earlier version has go away, and no others.
func TestFormerTablesAreRemoved(t *testing.T) {
	o := options(t)
	d := mustOpen(t, o)
	former, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	must(t, err)
	defer former.Close()
	must(t, former.Pin(d.tablePath("former_table")))
	d.Close()
	pins := func() []string {
		all, err := filepath.Glob(d.tablePath("*"))
		must(t, err)
		return all
	}
	before := pins()
	mustOpen(t, o).Close()
	if after := pins(); len(after) != len(before)-1 || slices.Contains(after, d.tablePath("former_table")) {
		t.Errorf("pinned are %q, before %q", after, before)
	}
}
