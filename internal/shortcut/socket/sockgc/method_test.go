// SPDX-License-Identifier: Apache-2.0

package sockgc

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/needs"
)

// A socket keeps its cookie when its program reconnects it, which it should do when its backend is removed:
// such a socket changed between the scan and its termination, and must stay.
func TestNetlinkSparesWhatIsConnectedAnew(t *testing.T) {
	needs.Root(t)
	const before, now = 1111, 2222
	loopback := [4]byte{127, 0, 0, 1}
	inOwnNamespace(t, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
		if err != nil {
			return err
		}
		stale := bpf.StaleSocket{Cookie: cookie, BackendPort: bpf.NetworkOrder(before)}
		stale.Backend.Bytes = [16]byte{10: 0xff, 0xff, 127, 0, 0, 1}
		for _, step := range []struct {
			port  int
			ended int
		}{{now, 0}, {before, 1}} {
			if err := unix.Connect(fd, &unix.SockaddrInet4{Port: step.port, Addr: loopback}); err != nil {
				return err
			}
			ended, err := destroyByNetlink(unix.IPPROTO_UDP, []bpf.StaleSocket{stale})
			if err != nil {
				return err
			}
			errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
			if want := step.ended != 0; err != nil || ended != step.ended || (errno == int(unix.ECONNABORTED)) != want {
				t.Errorf("connected to port %d: %d ended, SO_ERROR %v (%v)", step.port, ended, unix.Errno(errno), err)
			}
		}
		return nil
	})
}

// inOwnNamespace runs a function in a network namespace whose loopback is up.
func inOwnNamespace(t *testing.T, f func() error) {
	t.Helper()
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = errors.Join(loopbackUp(), f())
		}
		result <- err
	}()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}

func TestChoose(t *testing.T) {
	able := func(end bool) (finder, error) { return &world{takes: map[bool]time.Duration{true: 1}[end]}, nil }
	never := func(bool) (finder, error) { return nil, errors.New("no iterators") }
	onlyTold := func(end bool) (finder, error) {
		if end {
			return never(end)
		}
		return able(end)
	}
	for _, c := range []struct {
		asked  Method
		canEnd bool
		open   func(bool) (finder, error)
		want   Method
		fails  bool
	}{
		{Auto, true, able, Iterator, false},
		{Auto, false, able, Netlink, false},
		{Auto, true, onlyTold, Netlink, false},
		{Auto, true, never, Off, true},
		{Iterator, true, able, Iterator, false},
		{Iterator, false, able, Off, true},
		{Iterator, true, onlyTold, Off, true},
		{Netlink, true, able, Netlink, false},
		{Netlink, true, never, Off, true},
		{Off, true, able, Off, false},
	} {
		method, f, why, err := choose(c.asked, c.canEnd, c.open)
		if method != c.want || (err != nil) != c.fails || why == "" {
			t.Errorf("%s, bpf_sock_destroy %t: %s, %q, %v; want %s", c.asked, c.canEnd, method, why, err, c.want)
		}
		if f != nil && (f.(*world).takes == 1) != (method == Iterator) {
			t.Errorf("%s: the finder itself terminates sockets, with method %s", c.asked, method)
		}
		if (f == nil) != (method == Off) {
			t.Errorf("%s: finder %v for %s", c.asked, f, method)
		}
	}
}
