// SPDX-License-Identifier: Apache-2.0

package kernelct

import (
	"errors"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// inNamespace runs f in a network namespace of its own.
func inNamespace(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; errors.Is(err, os.ErrPermission) {
		t.Skip("needs root")
	} else if err != nil {
		t.Fatal(err)
	}
}

// An entry is there in one direction, with the reply seen; a second one is no error, and neither is to delete it twice.
func TestEntries(t *testing.T) {
	inNamespace(t, func() {
		table, err := Open()
		if err != nil {
			t.Error(err)
			return
		}
		defer table.Close()
		for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			for _, ends := range [][2]string{{"10.0.0.1:1000", "10.0.0.2:80"}, {"[fd00::1]:1000", "[fd00::2]:80"}} {
				f := Flow{netip.MustParseAddrPort(ends[0]), netip.MustParseAddrPort(ends[1]), protocol}
				open := func(when string, f Flow, want bool) {
					t.Helper()
					if got, err := table.AreOpen([]Flow{f}); err != nil || got[0] != want {
						t.Errorf("%s: %v is open: %v, %v; want %t", when, f, got, err, want)
					}
				}
				open("before", f, false)
				for range 2 {
					if err := table.Create(Entry{f, true}); err != nil {
						t.Errorf("create %v: %v", f, err)
					}
				}
				open("created", f, true)
				open("created", f.Reverse(), false)
				if err := table.SetLiberal(f); err != nil {
					t.Errorf("flags of %v: %v", f, err)
				}
				for range 2 {
					if err := table.Delete(f); err != nil {
						t.Errorf("delete %v: %v", f, err)
					}
				}
				open("deleted", f, false)
			}
		}
	})
}
