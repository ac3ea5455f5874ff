// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"os"
	"strings"
	"testing"

	"beeline.io/beeline/internal/pinfs"
)

// TestSecondAgentIsRefused: a second agent is refused with the pid of the first.
func TestSecondAgentIsRefused(t *testing.T) {
	o := options(t)
	d := mustOpen(t, o)
	var locked *pinfs.LockedError
	if _, err := Open(o); !errors.As(err, &locked) || locked.PID != os.Getpid() {
		t.Errorf("second agent: %v", err)
	}
	if err := Cleanup(o.BPFFS); !errors.As(err, &locked) {
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
	must(t, Cleanup(o.BPFFS))
	mustOpen(t, o)
}
