// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A socket belongs to its host: the kernel itself reports the cookie of its namespace and the ID of its cgroup.
func TestSocketBelongsToHost(t *testing.T) {
	l := New(t)
	for _, h := range l.Hosts() {
		port := listenOn(t, h)
		fd, err := h.Socket(unix.AF_INET6, unix.SOCK_STREAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		want, err := netnsCookie(t, h)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := cookieOf(fd); err != nil || got != want {
			t.Errorf("%s: socket in namespace %d (%v), want %d", h.Name, got, err, want)
		}
		var dir unix.Stat_t
		if err := unix.Stat(h.Cgroup, &dir); err != nil {
			t.Fatal(err)
		}
		if got := socketCgroup(t, h, port); got != dir.Ino {
			t.Errorf("%s: socket in cgroup %d, want %d (%s)", h.Name, got, dir.Ino, h.Cgroup)
		}
	}
}

// The test above can fail: a socket of the caller does not belong to the host.
func TestOwnSocketDoesNotBelongToHost(t *testing.T) {
	l := New(t)
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	own, err := cookieOf(fd)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]string{own: "the caller"}
	for _, h := range l.Hosts() {
		cookie, err := netnsCookie(t, h)
		if err != nil {
			t.Fatal(err)
		}
		if other, twice := seen[cookie]; twice {
			t.Errorf("%s and %s share a namespace", h.Name, other)
		}
		seen[cookie] = h.Name
	}
}

// listenOn opens a listener of the host and returns its port.
func listenOn(t *testing.T, h *Host) uint16 {
	t.Helper()
	listener, err := h.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return unmapped(listener.Addr()).Port()
}

func cookieOf(fd int) (uint64, error) {
	return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
}

// netnsCookie opens a socket inside the namespace, without the helper.
func netnsCookie(t *testing.T, h *Host) (cookie uint64, err error) {
	t.Helper()
	err = h.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		cookie, err = cookieOf(fd)
		return err
	})
	return cookie, err
}

// inetDiagRequest is struct inet_diag_req_v2 of linux/inet_diag.h.
type inetDiagRequest struct {
	family, protocol, ext, _ uint8
	states                   uint32
	sourcePort, destPort     [2]byte // network byte order
	source, dest             [16]byte
	device                   uint32
	cookie                   [2]uint32
}

func (r *inetDiagRequest) Len() int { return int(unsafe.Sizeof(*r)) }
func (r *inetDiagRequest) Serialize() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(r)), r.Len())
}

const (
	sockDiagByFamily   = 20
	inetDiagCgroupID   = 21 // attribute INET_DIAG_CGROUP_ID: u64
	sizeofInetDiagMsg  = 72 // struct inet_diag_msg
	tcpListen          = 10
	inetDiagSourcePort = 4 // offset in struct inet_diag_msg
)

// socketCgroup asks the kernel for the cgroup of the listener on a port.
func socketCgroup(t *testing.T, h *Host, port uint16) (id uint64) {
	t.Helper()
	err := h.Do(func() error {
		request := nl.NewNetlinkRequest(sockDiagByFamily, unix.NLM_F_DUMP)
		request.AddData(&inetDiagRequest{family: unix.AF_INET6, protocol: unix.IPPROTO_TCP, states: 1 << tcpListen})
		answers, err := request.Execute(unix.NETLINK_INET_DIAG, 0)
		if err != nil {
			return err
		}
		for _, answer := range answers {
			if binary.BigEndian.Uint16(answer[inetDiagSourcePort:]) != port {
				continue
			}
			attrs, err := nl.ParseRouteAttr(answer[sizeofInetDiagMsg:])
			if err != nil {
				return err
			}
			for _, a := range attrs {
				if a.Attr.Type == inetDiagCgroupID {
					id = binary.NativeEndian.Uint64(a.Value)
					return nil
				}
			}
			return errors.New("the kernel does not report the socket's cgroup")
		}
		return errors.New("no such listener")
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestSocketReturnsTheErrno(t *testing.T) {
	l := New(t)
	_, err := l.Host("a1").Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_UDP)
	if !errors.Is(err, syscall.EPROTONOSUPPORT) {
		t.Errorf("TCP socket with protocol UDP: %v, want EPROTONOSUPPORT", err)
	}
	// And the process that creates sockets still runs.
	fd, err := l.Host("a1").Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
}

func TestSocketsOfManyHostsAtOnce(t *testing.T) {
	l := New(t)
	want := map[*Host]uint64{}
	for _, h := range l.Hosts() {
		cookie, err := netnsCookie(t, h)
		if err != nil {
			t.Fatal(err)
		}
		want[h] = cookie
	}
	var workers sync.WaitGroup
	for _, h := range l.Hosts() {
		for range 4 {
			workers.Go(func() {
				for range 50 {
					fd, err := h.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
					if err != nil {
						t.Error(err)
						return
					}
					if got, err := cookieOf(fd); err != nil || got != want[h] {
						t.Errorf("%s: socket in namespace %d (%v), want %d", h.Name, got, err, want[h])
					}
					unix.Close(fd)
				}
			})
		}
	}
	workers.Wait()
}

func TestSocketAfterDownIsAnError(t *testing.T) {
	l := New(t)
	if err := l.Down(); err != nil {
		t.Fatal(err)
	}
	if fd, err := l.Host("a1").Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err == nil {
		unix.Close(fd)
		t.Error("a lab that is down returned a socket")
	}
}

func TestDoRunsInTheNamespaceAndLeavesIt(t *testing.T) {
	l := New(t)
	own, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var inside string
	if err := l.Host("b2").Do(func() (err error) {
		inside, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if inside == own {
		t.Error("Do ran in the caller's namespace")
	}
	// t.Fatal inside must not hang the test.
	if err := l.Host("b2").Do(func() error { runtime.Goexit(); return nil }); !errors.Is(err, errLeft) {
		t.Errorf("Do with runtime.Goexit: %v, want %v", err, errLeft)
	}
	// The thread of that Goexit ends.
	eventually(t, "no thread is in the namespace", func() bool {
		tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(tasks, func(path string) bool {
			ns, err := os.Readlink(path)
			return err == nil && ns == inside
		})
	})
}
