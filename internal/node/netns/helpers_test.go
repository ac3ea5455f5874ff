// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A resident is a thread in its own network namespace.
type resident struct {
	inode, cookie uint64
	path          string // /proc/PID/task/TID/ns/net
	leave         func() // ends the thread
}

// settle starts a resident; prepare runs in its namespace.
func settle(t testing.TB, prepare func(path string) error) *resident {
	t.Helper()
	r, ready, end, gone := &resident{}, make(chan error, 1), make(chan struct{}), make(chan struct{})
	go onOwnThread(func() {
		defer close(gone)
		err := unix.Unshare(unix.CLONE_NEWNET)
		r.path = fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
		if err == nil {
			r.inode, r.cookie, err = here()
		}
		if err == nil && prepare != nil {
			err = prepare(r.path)
		}
		ready <- err
		<-end
	})
	r.leave = func() {
		close(end)
		<-gone
		awaitEnd(t, r.path) // the thread ends after the goroutine
	}
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *resident) open(t *testing.T) *Namespace {
	t.Helper()
	ns, err := Open(r.path)
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// onOwnThread runs a function on a thread that ends with it, which the first thread of a process does not.
func onOwnThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		f()
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		onOwnThread(f)
	}()
	<-ended
	runtime.UnlockOSThread()
}

// patience bounds the waits of tests. No result depends on it.
const patience = time.Minute

// awaitEnd waits until a path no longer exists.
func awaitEnd(t testing.TB, path string) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Readlink(path); errors.Is(err, os.ErrNotExist) {
			return
		}
	}
	t.Fatalf("%s still exists", path)
}

// here returns the inode and the cookie of the calling thread's namespace.
func here() (inode, cookie uint64, err error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return 0, 0, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Close(fd)
	cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return st.Ino, cookie, err
}
