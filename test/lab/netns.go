// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// netnsDir is where iproute2 keeps named namespaces; the bind mounts there
// keep a namespace alive without any process in it.
const netnsDir = "/run/netns"

func netnsPath(lab, host string) string {
	return filepath.Join(netnsDir, lab+"-"+host)
}

// onOwnThread runs f in a new goroutine that is locked to a thread other than the process's first one.
// /proc/self/ns shows the first thread, whose readers must never see a lab's namespace.
func onOwnThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		// While this goroutine holds the first thread, the next one
		// cannot get it.
		locked := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(locked)
			f()
		}()
		<-locked
		runtime.UnlockOSThread()
	}()
}

// errLeft is the caller's error if its function left by runtime.Goexit, as t.Fatal does.
var errLeft = errors.New("the function ended its goroutine (t.Fatal?) and did not return an error")

// withThread runs f on a locked thread of its own and returns the thread to its previous network namespace. f
// may change the namespace.
func withThread(f func() error) error {
	result := make(chan error, 1)
	onOwnThread(func() {
		err := errLeft
		// A goroutine that ends with its thread locked ends the thread: nothing else ever runs in a
		// namespace that it did not leave.
		defer func() { result <- err }()
		home, openErr := openCurrentNetNS()
		if openErr != nil {
			err = openErr
			return
		}
		defer home.Close()
		err = f()
		if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
			err = errors.Join(err, fmt.Errorf("leaving a network namespace: %w", back))
			return
		}
		runtime.UnlockOSThread()
	})
	return <-result
}

func openCurrentNetNS() (*os.File, error) {
	f, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	if err != nil {
		return nil, fmt.Errorf("opening the current network namespace: %w", err)
	}
	return f, nil
}

// inNetNS runs f on a thread in the namespace at path. Goroutines that f starts are not in it.
func inNetNS(path string, f func() error) error {
	ns, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("opening the network namespace: %w", err)
	}
	defer ns.Close()
	return withThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("entering network namespace %s: %w", path, err)
		}
		return f()
	})
}

// createNetNS makes a namespace named path, and runs configure inside it.
func createNetNS(path string, configure func() error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("naming a network namespace: %w", err)
	}
	f.Close()
	return withThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("creating network namespace %s (needs CAP_SYS_ADMIN and CONFIG_NET_NS): %w", path, err)
		}
		source := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
		if err := unix.Mount(source, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting network namespace at %s: %w", path, err)
		}
		return configure()
	})
}

// removeNetNS removes the name, if it exists. The namespace itself ends with
// its last process and socket.
func removeNetNS(path string) error {
	for {
		// EINVAL: no longer a mount point, or it never was one. A name can have more than one mount if
		// somebody bound it again.
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err == nil {
			continue
		}
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmounting network namespace %s: %w", path, err)
		}
		break
	}
	err := os.Remove(path)
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("removing the name of a network namespace: %w: it is also mounted below the mount at %s, "+
			"which was made later (ip netns add): a reboot removes it, or, if no other namespace is named there, "+
			"`umount --lazy %[2]s` and another try", err, filepath.Dir(path))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the name of a network namespace: %w", err)
	}
	return nil
}

// isNetNS reports whether path is a mounted namespace and not just its mount point, which remains after a
// reboot or an interrupted Up.
func isNetNS(path string) bool {
	return hasFileSystem(path, unix.NSFS_MAGIC)
}
