// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRepairsWhatIsTakenAway: pins and links that are removed are restored, with the tables that the
// programs use.
func TestRepairsWhatIsTakenAway(t *testing.T) {
	o := options(t)
	d := mustOpen(t, o)
	must(t, d.Attach())
	must(t, d.Tables.Frontends.Put(frontendKey(1), 5))
	if repaired, err := d.Repair(); len(repaired) != 0 || err != nil {
		t.Fatalf("nothing is missing: %v, %v", repaired, err)
	}
	for _, path := range []string{TablePath(o.BPFFS, SockMapFrontends), cgroupLinkPath(o.BPFFS, socketHooks[2])} {
		must(t, os.Remove(path))
	}
	if repaired, err := d.Repair(); len(repaired) != 2 || err != nil {
		t.Errorf("repaired %v, %v", repaired, err)
	}
	if all, err := Attachments(o.BPFFS, o.Components...); len(all) != d.Hooks() || err != nil {
		t.Errorf("attached: %+v, %v", all, err)
	}
	for _, lost := range []string{filepath.Join(o.BPFFS, "links"), o.BPFFS} {
		must(t, os.RemoveAll(lost))
		if repaired, err := d.Repair(); len(repaired) == 0 || err != nil {
			t.Errorf("%s was removed: repaired %v, %v", lost, repaired, err)
		}
		if all, err := Attachments(o.BPFFS, o.Components...); len(all) != d.Hooks() || err != nil || all[0].Detached {
			t.Errorf("%s was removed, and this is attached: %+v, %v", lost, all, err)
		}
		if running, _ := AgentRunning(o.BPFFS); !running {
			t.Errorf("%s was removed, and the lock is not held", lost)
		}
	}
	d.Close()

	// No agent was there to repair it, but programs are attached.
	for _, name := range []string{SockMapFrontends, SockMapConnected, SockMapAffinity} {
		must(t, os.Remove(TablePath(o.BPFFS, name)))
	}
	index, err := mustOpen(t, o).Tables.Frontends.All()
	if len(index) != 1 || err != nil {
		t.Errorf("the tables of the attached programs were not found again: %v, %v", index, err)
	}
}
