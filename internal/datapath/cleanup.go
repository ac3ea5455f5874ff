// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Cleanup detaches everything and removes the pins, their directory if nothing
// else is in it, and the mounts that Open made. It touches nothing that is not
// Beeline's by name, and refuses (*LockedError) while an agent is running. A
// directory that does not exist is clean.
func Cleanup(bpffs string) error {
	if _, err := os.Stat(bpffs); errors.Is(err, os.ErrNotExist) {
		return unmountOwnCgroup()
	}
	if on, err := isFS(bpffs, unix.BPF_FS_MAGIC); err != nil || !on {
		return errors.Join(err, fmt.Errorf("--bpffs %s: not on a BPF file system, so nothing of Beeline's is there", bpffs))
	}
	lock, err := lockBPFFS(bpffs)
	if err != nil {
		return err
	}
	err = removePins(bpffs)
	_, stat := os.Stat(filepath.Join(bpffs, mountedByUs))
	mounted := stat == nil
	lock.Close() // an open directory would keep its mount busy
	if err != nil {
		return err
	}
	if mounted {
		err = unmountBPFFS(bpffs)
	} else {
		os.Remove(bpffs) // fails if others have pins in it, which is as it should be
	}
	return errors.Join(err, unmountOwnCgroup())
}

// removePins removes what Open and Attach pinned: the links first, connect
// before getpeername, in the opposite order of attachment.
func removePins(bpffs string) error {
	if err := removeEdge(bpffs); err != nil {
		return err
	}
	for _, h := range slices.Backward(allHooks) {
		l, err := link.LoadPinnedLink(linkPath(bpffs, h), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = takeDown(l)
		}
		if err != nil {
			return fmt.Errorf("detach %s: %w", h.name, err)
		}
	}
	var paths []string
	for _, h := range allHooks {
		paths = append(paths, filepath.Join(bpffs, "programs", h.name), filepath.Join(bpffs, "programs", h.name+"_new"))
	}
	tables, err := filepath.Glob(filepath.Join(bpffs, "tables_v*")) // of whatever version
	if err != nil {
		return err
	}
	for _, dir := range tables {
		pins, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			return err
		}
		paths = append(paths, pins...)
	}
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := unmarkNamespaces(bpffs, ""); err != nil {
		return err
	}
	for _, dir := range append(tables, filepath.Join(bpffs, "links"), filepath.Join(bpffs, "programs")) {
		os.Remove(dir) // fails if others have pins in it, too
	}
	return nil
}

// takeDown detaches a pinned link and removes its pin. Without the first step the
// hook would run on for a while: the kernel lets go of what a pin held only
// after a grace period.
func takeDown(l link.Link) error {
	return errors.Join(l.Detach(), l.Unpin(), l.Close())
}

// unmountBPFFS unmounts what prepareBPFFS mounted, unless others use it.
func unmountBPFFS(bpffs string) error {
	at := mountPoint(bpffs)
	if err := os.Remove(filepath.Join(bpffs, mountedByUs)); err != nil {
		return err
	}
	if bpffs != at {
		os.Remove(bpffs)
	}
	left, err := os.ReadDir(at)
	for _, e := range left {
		if !strings.HasSuffix(e.Name(), ".debug") { // the kernel's own, in every such mount
			return err
		}
	}
	if err := errors.Join(err, unix.Unmount(at, 0)); err != nil {
		return fmt.Errorf("unmount %s: %w", at, err)
	}
	if at != systemBPFFS {
		return os.Remove(at)
	}
	return nil
}

// unmountOwnCgroup undoes what CgroupRoot did, unless another agent uses it.
func unmountOwnCgroup() error {
	if v2, err := isFS(OwnCgroup, unix.CGROUP2_SUPER_MAGIC); err != nil || !v2 {
		return nil
	}
	err := unix.Unmount(OwnCgroup, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", OwnCgroup, err)
	}
	return os.Remove(OwnCgroup)
}
