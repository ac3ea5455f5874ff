// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"path/filepath"
	"strings"
	"testing"

	"beeline.io/beeline/test/lab"
)

// TestOtherNamespaceIsRefused: an agent does not take over pins that serve another network namespace, and a
// command there detects the wrong namespace.
func TestOtherNamespaceIsRefused(t *testing.T) {
	node := lab.New(t).Nodes()[0]
	o := Options{BPFFS: filepath.Join(node.BPFFS, "beeline"), CgroupRoot: node.CgroupRoot, BindProtection: true, Components: []*Component{Socket()}}
	d := mustOpen(t, o)
	must(t, d.Attach())
	d.Close()
	wantOther := func(where string, want bool) {
		t.Helper()
		if other, err := OtherNamespace(o.BPFFS); other != want || err != nil {
			t.Errorf("%s: another namespace: %t, %v", where, other, err)
		}
	}
	wantOther("here", false)
	must(t, node.Do(func() error {
		wantOther("in the node", true)
		_, err := Open(o)
		if err == nil || !strings.Contains(err.Error(), "serves another network namespace") {
			t.Errorf("an agent in the node: %v", err)
		}
		return nil
	}))
	mustOpen(t, o).Close() // the right one does not refuse its own pins
	must(t, Cleanup(o.BPFFS, nil, o.Components...))
	wantGone(t, o.BPFFS)
	must(t, node.Do(func() error {
		d, err := Open(o)
		if err == nil {
			d.Close()
			wantOther("in the node, after cleanup", false)
		}
		return err
	}))
}
