// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net/netip"
	"testing"

	kernel "github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node/netns"
	"beeline.io/beeline/test/needs"
)

// Cleanup removes the entries that programs have added to the kernel's conntrack, and no others.
func TestOwnEntriesAreRemoved(t *testing.T) {
	needs.Root(t)
	n, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := n.Do(func() error {
		c, err := kernel.Dial(nil)
		if err != nil {
			return err
		}
		defer c.Close()
		own := kernel.NewFlow(unix.IPPROTO_UDP, kernel.StatusConfirmed, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 1000, 53, 100, bpf.OwnEntryMark)
		other := kernel.NewFlow(unix.IPPROTO_UDP, kernel.StatusConfirmed, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 1001, 53, 100, 7)
		for _, f := range []kernel.Flow{own, other} {
			if err := c.Create(f); err != nil {
				return err
			}
		}
		if err := removeOwnEntries(); err != nil {
			return err
		}
		left, err := c.Dump(nil)
		if len(left) != 1 || left[0].TupleOrig.Proto.SourcePort != 1001 {
			t.Errorf("left are %+v, want the flow of port 1001", left)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
