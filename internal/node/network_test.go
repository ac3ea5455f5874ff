// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/util/wakeup"
)

// That changes are not notified is an error: without CAP_NET_ADMIN the kernel does not tell of policies.
func TestFollowWithoutNetAdmin(t *testing.T) {
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err := withoutNetAdmin(); err != nil {
			ended <- fmt.Errorf("capset: %w", err)
			return
		}
		_, err := Follow()
		ended <- err
	}()
	if err := <-ended; !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "watch the network") {
		t.Errorf("the error is %v, want that the network cannot be watched", err)
	}
}

// A read sees what was changed just before, and without a change the table is not dumped again.
func TestTablesFollowChanges(t *testing.T) {
	inNamespace(t, func() error {
		for _, do := range []string{"link set lo up", "link add br0 type bridge", "link add d0 type veth peer name d1", "link set d0 master br0", "link set d0 up", "link set d1 up", "link set br0 up", "addr add 192.0.2.1/24 dev br0"} {
			if err := ip(do); err != nil {
				return err
			}
		}
		n, err := Follow()
		if err != nil {
			return err
		}
		tables := map[Table]func() (any, error){
			Devices: func() (any, error) { return n.Devices() }, Addresses: func() (any, error) { return n.Addresses() }, Routes: func() (any, error) { return n.Routes() },
			Rules: func() (any, error) { return n.Rules() }, Neighbours: func() (any, error) { return n.Neighbours() },
			ForwardingEntries: func() (any, error) { return n.ForwardingEntries() }, Queues: func() (any, error) { return n.Queues() }, XFRM: func() (any, error) { return n.XFRMPolicies() },
		}
		for _, c := range []struct {
			table         Table
			do, has, undo string
		}{
			{Devices, "link set d1 mtu 1400", "1400", "link set d1 mtu 1500"},
			{Addresses, "addr add 192.0.2.7/24 dev br0", "192.0.2.7", "addr del 192.0.2.7/24 dev br0"},
			{Routes, "route add 198.51.100.0/24 via 192.0.2.9", "198.51.100.0/24", "route del 198.51.100.0/24"},
			{Routes, "route add 198.51.100.0/24 via 192.0.2.9", "198.51.100.0/24", "link set br0 down"}, // takes it along silently
			{Rules, "rule add pref 9 fwmark 0x77 table 9", "119", "rule del pref 9"},
			{Neighbours, "neigh add 192.0.2.8 lladdr 02:00:00:00:00:08 dev d1", "192.0.2.8", "neigh del 192.0.2.8 dev d1"},
			{ForwardingEntries, "link set d0 address 02:00:00:00:00:07", "MAC:[2 0 0 0 0 7]", "link set d0 address 02:00:00:00:00:09"},
			{XFRM, "xfrm policy add dir fwd src 10.1.0.0/16 dst 10.2.0.0/16 action block", "10.2.0.0/16", "xfrm policy flush"},
		} {
			for i, do := range []string{c.do, c.undo} {
				if _, err := tables[c.table](); err != nil {
					return err
				}
				if err := ip(do); err != nil {
					return err
				}
				_, _ = tables[c.table]() // perhaps before all is done
				time.Sleep(2 * settleTime)
				got, err := tables[c.table]()
				if err != nil {
					return err
				}
				if is := strings.Contains(fmt.Sprintf("%+v", got), c.has); is != (i == 0) {
					t.Errorf("after ip %s: %q is there: %t; %+v", do, c.has, is, got)
				}
			}
		}
		first, _ := n.Devices()
		second, err := n.Devices()
		if err != nil || &first[0] != &second[0] {
			t.Errorf("dumped twice without a change; %v", err)
		}
		return nil
	})
}

// However many readers there are, one of them dumps; after an error, or when all is to be forgotten, the next one does.
func TestOneDumpForAll(t *testing.T) {
	inNamespace(t, func() error {
		n, err := Follow()
		if err != nil {
			return err
		}
		var table cached[[]int]
		dumps, failure := 0, error(nil)
		dump := func() ([]int, error) {
			dumps++
			time.Sleep(10 * time.Millisecond)
			return []int{dumps}, failure
		}
		var readers sync.WaitGroup
		for range 10 {
			readers.Go(func() {
				if got, err := read(n, Rules, &table, dump); err != nil || !slices.Equal(got, []int{1}) {
					t.Errorf("%v, %v", got, err)
				}
			})
		}
		readers.Wait()
		n.Forget()
		failure = errors.New("unreadable")
		for range 2 {
			if _, err := read(n, Rules, &table, dump); !errors.Is(err, failure) {
				t.Errorf("the error is %v", err)
			}
		}
		if dumps != 3 {
			t.Errorf("%d dumps, want one of all readers, and one of each that failed", dumps)
		}
		return nil
	})
}

// A large table is given to who reads it at the same time, and kept no longer.
func TestLargeTablesAreNotKept(t *testing.T) {
	inNamespace(t, func() error {
		n, err := Follow()
		if err != nil {
			return err
		}
		var table cached[[]byte]
		dumps := 0
		get := func() {
			_, _ = read(n, Rules, &table, func() ([]byte, error) { dumps++; return make([]byte, mostKept+1), nil })
		}
		get()
		get()
		if dumps != 1 {
			t.Errorf("%d dumps", dumps)
		}
		time.Sleep(keepTime + time.Second/2)
		table.mu.Lock()
		defer table.mu.Unlock()
		if table.value != nil || table.version != 0 {
			t.Error("the table is kept")
		}
		return nil
	})
}

// Messages that were lost wake all, and all tables are dumped again.
func TestLostMessages(t *testing.T) {
	n := &Network{}
	before := n.states
	tables := []Table{Devices, Routes, Neighbours, Queues}
	signals := make([]wakeup.Signal, len(tables))
	for i := range signals {
		signals[i] = wakeup.NewSignal()
		n.Notify(signals[i], tables[i])
		<-signals[i]
	}
	n.noteRouting(syscall.NetlinkMessage{})
	for i, s := range signals {
		if len(s) == 0 {
			t.Errorf("table %#x: no signal", tables[i])
		}
	}
	for i := range n.states {
		if changed := n.states[i] != before[i]; changed != (ofRouting>>i&1 != 0) {
			t.Errorf("table %#x has changed: %t", 1<<i, changed)
		}
	}
}

// withoutNetAdmin takes from the calling thread the capability without which the kernel reports no policies.
func withoutNetAdmin() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	return unix.Capset(&header, &data[0])
}
