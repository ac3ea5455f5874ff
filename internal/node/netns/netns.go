// SPDX-License-Identifier: Apache-2.0

// Package netns finds the network namespaces of a node and runs functions in them.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ErrVanished means that a namespace vanished, or that a task left it, during an operation. It is not a
// failure.
var ErrVanished = errors.New("the network namespace has vanished")

// Namespace is an open network namespace: it exists at least until Close.
type Namespace struct {
	// Inode distinguishes namespaces that exist at the same time.
	Inode uint64

	file *os.File
}

// Open opens the namespace of an nsfs file: /proc/PID/ns/net, /proc/PID/task/TID/ns/net, or a
// mount. It returns ErrVanished if the file does not exist or is no longer a namespace.
func Open(path string) (*Namespace, error) {
	file, err := os.Open(path)
	if vanished(err) {
		return nil, fmt.Errorf("%s: %w", path, ErrVanished)
	}
	if err != nil {
		return nil, err
	}
	// NS_GET_NSTYPE (Linux 4.11) fails if the mount is gone: the file below it is a plain file.
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

// vanished reports whether opening a file failed because its task has ended: ENOENT, or ESRCH if it
// ended during the call.
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

// Close releases the namespace.
func (n *Namespace) Close() error { return n.file.Close() }

// Do runs a function in the namespace, on a thread that runs nothing else meanwhile. Goroutines that the
// function starts are not in the namespace. Do returns the function's error unchanged; other errors mean that
// the function did not run. Do needs CAP_SYS_ADMIN.
func (n *Namespace) Do(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		result <- n.onThread(f)
	}()
	return <-result
}

// onThread runs the function on the calling goroutine's locked thread. It unlocks the thread only if it is back
// in its own namespace; otherwise the runtime ends the thread with the goroutine.
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

// Cookie returns the kernel's ID of the namespace, which is not reused until reboot (SO_NETNS_COOKIE, Linux
// 5.14).
func (n *Namespace) Cookie() (cookie uint64, err error) {
	err = n.Do(func() error {
		cookie, err = CurrentCookie()
		return err
	})
	return cookie, err
}

// CurrentCookie returns the cookie of the calling thread's namespace.
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
