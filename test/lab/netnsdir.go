// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// shareNetNSDir makes netnsDir a shared mount of its own, as `ip netns add` does (ipnetns.c of iproute2).
// Otherwise the machine's first `ip netns add` would bind the directory over itself later: existing names would
// be mounted twice, one mount out of reach, and could not be removed until the next reboot (EBUSY).
func shareNetNSDir() error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return err
	}
	// Opened before the mount, it refers to the directory below it. iproute2 takes the same lock.
	below, err := os.Open(netnsDir)
	if err != nil {
		return err
	}
	defer below.Close()
	if err := flock(below, unix.LOCK_EX); err != nil {
		return fmt.Errorf("locking %s: %w", netnsDir, err)
	}
	err = makeShared(netnsDir)
	if !errors.Is(err, unix.EINVAL) { // EINVAL: not a mount point
		return err
	}
	if err := unix.Mount(netnsDir, netnsDir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("making %s a mount point: %w", netnsDir, err)
	}
	return errors.Join(releaseHidden(below), makeShared(netnsDir))
}

func makeShared(dir string) error {
	if err := unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("making the mount at %s shared: %w", dir, err)
	}
	return nil
}

// releaseHidden unmounts the namespaces that were mounted in netnsDir before it became a mount point: the new
// mount has copies of them. If the parent mount is shared, the kernel unmounts both together.
func releaseHidden(below *os.File) error {
	list, err := mounts()
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range list {
		if m.path == netnsDir && m.shared {
			return nil
		}
		if filepath.Dir(m.path) != netnsDir {
			continue
		}
		hidden := fmt.Sprintf("/proc/self/fd/%d/%s", below.Fd(), filepath.Base(m.path))
		err := unix.Unmount(hidden, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		// EINVAL: the line is a copy's, and the original is already gone. ENOENT: it is in another
		// /run, below this one.
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmounting %s below the new mount of %s: %w", m.path, netnsDir, err))
		}
	}
	return errors.Join(errs...)
}
