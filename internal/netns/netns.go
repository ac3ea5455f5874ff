// SPDX-License-Identifier: Apache-2.0

// Package netns finds the network namespaces of a node and works in them.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ErrVanished is for a namespace that has gone, or a task that has left it, in
// the middle: nothing is wrong.
var ErrVanished = errors.New("the network namespace has vanished")

// Namespace is a network namespace that is held open: it lives at least until
// Close.
type Namespace struct {
	// Inode tells namespaces that live at one time apart.
	Inode uint64

	file *os.File
}

// Open opens the namespace behind a file of nsfs: /proc/PID/ns/net,
// /proc/PID/task/TID/ns/net, or where one is mounted. errors.Is ErrVanished if
// there is no such file any more or it is no namespace any more.
func Open(path string) (*Namespace, error) {
	file, err := os.Open(path)
	if vanished(err) {
		return nil, fmt.Errorf("%s: %w", path, ErrVanished)
	}
	if err != nil {
		return nil, err
	}
	// NS_GET_NSTYPE (Linux 4.11): what was mounted there may be gone, and the
	// file below it is another.
	kind, err := unix.IoctlRetInt(int(file.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		file.Close()
		return nil, fmt.Errorf("%s: %w", path, ErrVanished)
	}
	inode, err := inodeOf(file)
	if err != nil {
		file.Close()
		return nil, err
	}
	return &Namespace{Inode: inode, file: file}, nil
}

// vanished is what opening a file of a task says that has ended: ENOENT, or
// ESRCH if it ends in the middle.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

func inodeOf(file *os.File) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return 0, &os.PathError{Op: "fstat", Path: file.Name(), Err: err}
	}
	return st.Ino, nil
}

// Current opens the namespace of the calling thread.
func Current() (*Namespace, error) { return Open("/proc/thread-self/ns/net") }

// Close lets go of the namespace.
func (n *Namespace) Close() error { return n.file.Close() }

// Do runs a function in the namespace, on a thread that runs nothing else
// meanwhile. Goroutines that the function starts are not in the namespace. The
// function's error comes back as it is; other errors say that it has not run.
// Needs CAP_SYS_ADMIN.
func (n *Namespace) Do(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		result <- n.onThread(f)
	}()
	return <-result
}

// onThread runs the function on the calling goroutine's locked thread. It
// unlocks the thread only if that is back where it was: a goroutine that ends
// with a locked thread takes the thread along.
func (n *Namespace) onThread(f func() error) error {
	home, err := Current()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open the thread's own network namespace: %w", err)
	}
	defer home.Close()
	if home.Inode == n.Inode {
		defer runtime.UnlockOSThread()
		return f()
	}
	if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter network namespace %d (needs CAP_SYS_ADMIN): %w", n.Inode, err)
	}
	defer func() {
		if unix.Setns(int(home.file.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	return f()
}

// Cookie is the kernel's number of the namespace, never used twice while the
// machine runs (SO_NETNS_COOKIE, Linux 5.14).
func (n *Namespace) Cookie() (cookie uint64, err error) {
	err = n.Do(func() error {
		cookie, err = CurrentCookie()
		return err
	})
	return cookie, err
}

// CurrentCookie is the Cookie of the calling thread's namespace.
func CurrentCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("SO_NETNS_COOKIE (Linux 5.14): %w", err)
	}
	return cookie, nil
}
