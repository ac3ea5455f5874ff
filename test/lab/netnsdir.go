// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// shareNetNSDir makes netnsDir a shared mount of its own, as `ip netns add` does (ipnetns.c of
// iproute2). Without it the first `ip netns add` on the machine would bind the directory over
// itself later: the names that are there would be mounted twice, once out of reach, and none of them
// could be removed until the next reboot (EBUSY).
func shareNetNSDir() error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return err
	}
	// Opened before the mount, it leads to what lies below it. iproute2 takes the same lock.
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

// releaseHidden unmounts the namespaces that were mounted in netnsDir before it became a mount
// point: the new mount has copies of them. Where the parent mount is shared, both are one: the
// kernel unmounts them together.
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
		// EINVAL: the line is that of a copy, and the original has gone already. ENOENT: it is of
		// another /run, over which this one is mounted.
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmounting %s below the new mount of %s: %w", m.path, netnsDir, err))
		}
	}
	return errors.Join(errs...)
}
