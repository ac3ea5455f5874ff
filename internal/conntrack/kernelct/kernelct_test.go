// SPDX-License-Identifier: Apache-2.0

package kernelct

import (
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/needs"
)

// inNamespace runs f in a network namespace of its own.
func inNamespace(t *testing.T, f func()) {
	t.Helper()
	needs.Root(t)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
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
				f := Flow{Source: netip.MustParseAddrPort(ends[0]), Destination: netip.MustParseAddrPort(ends[1]), Protocol: protocol}
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
				if flows, err := Handed(); err != nil || !slices.Contains(flows, f) {
					t.Errorf("%v was handed to conntrack, which has %v: %v", f, flows, err)
				}
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

// Thousands of entries are made, found and deleted, more than one message has; one that is there, or is not, is no
// error for the others.
func TestManyEntries(t *testing.T) {
	inNamespace(t, func() {
		table, err := Open()
		if err != nil {
			t.Error(err)
			return
		}
		defer table.Close()
		const many = 5000
		flows, entries := make([]Flow, many), make([]Entry, many)
		for i := range flows {
			a, b := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), netip.MustParseAddr("10.1.0.1")
			flows[i] = Flow{Source: netip.AddrPortFrom(a, 1000), Destination: netip.AddrPortFrom(b, 80), Protocol: unix.IPPROTO_TCP}
			entries[i] = Entry{flows[i], true}
		}
		count := func() (n int) {
			open, err := table.AreOpen(flows)
			if err != nil {
				t.Error(err)
			}
			for _, is := range open {
				if is {
					n++
				}
			}
			return n
		}
		if err := table.Create(entries[40:140]...); err != nil {
			t.Error(err)
		}
		if got := count(); got != 100 {
			t.Errorf("%d flows are open, want 100", got)
		}
		begin := time.Now()
		if err := table.Create(entries...); err != nil {
			t.Error(err)
		}
		t.Logf("%v for each entry", time.Since(begin)/many)
		if got := count(); got != many {
			t.Errorf("%d flows are open, want %d", got, many)
		}
		if err := errors.Join(table.Delete(flows[1000:2000]...), table.Delete(flows...)); err != nil {
			t.Error(err)
		}
		if got := count(); got != 0 {
			t.Errorf("%d flows are open after all were deleted", got)
		}
		if err := table.Create(Entry{Flow{Source: flows[0].Source, Destination: flows[0].Destination, Protocol: unix.IPPROTO_ICMP}, true}, entries[0]); err == nil {
			t.Error("an entry that the kernel does not take is no error")
		}
		if got := count(); got != 1 {
			t.Errorf("%d flows are open, want the one beside that", got)
		}
	})
}

// BenchmarkCreate makes entries of conntrack, each in a message of its own, and many in one.
func BenchmarkCreate(b *testing.B) {
	for name, at := range map[string]int{"one by one": 1, "many at once": 1024} {
		b.Run(name, func(b *testing.B) {
			done := make(chan bool)
			go func() {
				defer close(done)
				runtime.LockOSThread()
				if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
					b.Error(err)
					return
				}
				table, err := Open()
				if err != nil {
					b.Error(err)
					return
				}
				defer table.Close()
				var some []Entry
				for i := 0; b.Loop(); i++ {
					a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
					some = append(some, Entry{Flow{Source: netip.AddrPortFrom(a, 1000), Destination: netip.MustParseAddrPort("10.255.0.1:80"), Protocol: unix.IPPROTO_TCP}, true})
					if len(some) == at {
						_ = table.Create(some...)
						some = some[:0]
					}
				}
			}()
			<-done
		})
	}
}
