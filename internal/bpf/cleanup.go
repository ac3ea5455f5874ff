// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf/pinfs"
)

// Cleanup detaches all programs of components and removes the pins, their directory if it is empty then, and the mounts
// that Open made. It removes only what has one of Beeline's names. It does nothing if the directory does not exist.
//
// detached, if it is not nil, is called when all programs are detached and the tables are still pinned.
//
// Errors: *pinfs.LockedError while an agent is running.
func Cleanup(bpffs string, detached func(), components ...*Component) error {
	if _, err := os.Stat(bpffs); errors.Is(err, os.ErrNotExist) {
		return unmountOwnCgroup()
	}
	if on, err := pinfs.IsFS(bpffs, unix.BPF_FS_MAGIC); err != nil || !on {
		return errors.Join(err, fmt.Errorf("--pins %s: not on a BPF file system, so Beeline has no pins there", bpffs))
	}
	lock, err := pinfs.Lock(bpffs)
	if err != nil {
		return err
	}
	err = removePins(bpffs, detached, components)
	mounted := pinfs.Mounted(bpffs)
	lock.Close() // an open directory would keep its mount busy
	if err != nil {
		return err
	}
	if mounted {
		err = pinfs.Unmount(bpffs)
	} else {
		os.Remove(bpffs) // fails, intentionally, if others have pins in it
	}
	return errors.Join(err, unmountOwnCgroup())
}

// removePins removes what Open and Attach pinned: first the links, in reverse order of attachment (connect
// before getpeername).
func removePins(bpffs string, detached func(), components componentList) error {
	var paths []string
	for _, c := range components {
		if err := c.giveUp(bpffs); err != nil {
			return err
		}
	}
	for _, c := range slices.Backward(components) {
		if err := c.detachAll(bpffs); err != nil {
			return err
		}
		for _, h := range c.CgroupHooks {
			paths = append(paths, programPath(bpffs, h)+"_new")
		}
	}
	if detached != nil {
		detached()
	}
	if err := removeNewTables(bpffs); err != nil {
		return err
	}
	pins, err := filepath.Glob(filepath.Join(bpffs, "tables_v*", "*")) // of all versions
	if err != nil {
		return err
	}
	for _, path := range append(paths, pins...) {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := errors.Join(unmarkNamespaces(bpffs, ""), pinfs.UnmarkDrain(bpffs)); err != nil {
		return err
	}
	tables, err := filepath.Glob(filepath.Join(bpffs, "tables_v*"))
	for _, dir := range append(tables, filepath.Join(bpffs, "links"), filepath.Join(bpffs, "programs")) {
		os.Remove(dir) // fails if others have pins in it
	}
	return err
}

// remove detaches a component's programs and removes the pins of its tables.
func (c *Component) remove(bpffs string) error {
	if err := c.giveUp(bpffs); err != nil {
		return err
	}
	if err := c.detachAll(bpffs); err != nil {
		return err
	}
	for _, name := range c.pinnedNames() {
		if err := os.Remove(TablePath(bpffs, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// giveUp calls Release.
func (c *Component) giveUp(bpffs string) error {
	if c.Release == nil {
		return nil
	}
	return c.Release(bpffs)
}

// detachAll detaches a component's programs from devices and cgroups.
func (c *Component) detachAll(bpffs string) error {
	if err := c.detachFormer(bpffs); err != nil {
		return err
	}
	if c.Detach != nil {
		if err := c.Detach(bpffs); err != nil {
			return err
		}
	}
	if err := c.detachFromDevices(bpffs); err != nil {
		return err
	}
	for _, h := range slices.Backward(c.CgroupHooks) {
		if err := detachHook(bpffs, h); err != nil {
			return err
		}
	}
	return nil
}

// detachFormer detaches what an earlier version has attached under another name.
func (c *Component) detachFormer(bpffs string) error {
	if c.Former == "" {
		return nil
	}
	former := Component{Name: c.Former, DeviceHooks: c.DeviceHooks, FilterPriority: c.FilterPriority}
	return former.detachFromDevices(bpffs)
}

// unmountOwnCgroup unmounts what CgroupRoot mounted, unless another agent uses it.
func unmountOwnCgroup() error {
	if v2, err := pinfs.IsFS(OwnCgroup, unix.CGROUP2_SUPER_MAGIC); err != nil || !v2 {
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
