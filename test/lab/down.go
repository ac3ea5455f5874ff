// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Down removes the lab with all its processes. Sockets that the caller still
// holds keep their namespace alive until they are closed.
func (l *Lab) Down() error {
	for _, h := range l.hosts {
		h.helper.stop()
	}
	return Down(l.Name)
}

// Down removes the lab of that name and all its remains: processes in its cgroups, mounts, cgroups, namespaces,
// files. It needs only the name, no state. The lab need not exist.
func Down(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	// Created if missing: without the lock another Up's lab could be removed.
	lock, err := lockLab(name, true, true)
	if err != nil {
		return err
	}
	defer lock.Close()
	return remove(name)
}

// remove removes a locked lab.
func remove(name string) error {
	if err := removeContents(name); err != nil {
		return fmt.Errorf("lab %s: %w", name, err)
	}
	if err := os.Remove(stateDir(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// The last lab also removes the root; the others keep it.
	if err := os.Remove(stateRoot); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeContents removes everything of a lab except its locked directory. It tries each step even if an earlier
// one failed, but removes files only after the mounts among them.
func removeContents(name string) error {
	if inside, err := insideCgroup(filepath.Base(labCgroup("", name))); err != nil {
		return err
	} else if inside {
		return errors.New("this process itself runs in the lab, whose processes are to be killed: run it outside")
	}
	var errs []error
	mount, err := findCgroup2()
	if err != nil {
		return err
	}
	if mount == "" {
		mount = filepath.Join(stateDir(name), "cgroup2")
	}
	errs = append(errs, removeCgroups(labCgroup(mount, name)))
	for _, h := range plan(largest).hosts {
		errs = append(errs, removeNetNS(netnsPath(name, h.name)))
	}
	if err := unmountBelow(stateDir(name)); err != nil {
		return errors.Join(append(errs, err)...)
	}
	entries, err := os.ReadDir(stateDir(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(stateDir(name), e.Name())))
	}
	return errors.Join(errs...)
}

// Sweep removes temporary labs whose process has ended without removing them, because it was killed. It skips
// labs that are being created or removed.
func Sweep() error {
	names, err := labNames()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, sweep(name))
	}
	return errors.Join(errs...)
}

func sweep(name string) error {
	if checkName(name) != nil || !abandoned(name) {
		return nil
	}
	lock, err := lockLab(name, false, false)
	if errors.Is(err, errBusy) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	// A lab of the same name may have been created since.
	if !abandoned(name) {
		return nil
	}
	return remove(name)
}

// abandoned reports whether nobody will take the lab down any more.
func abandoned(name string) bool {
	s, err := readState(name)
	if errors.Is(err, fs.ErrNotExist) {
		// Killed before the first write, or about to write: the lock tells which.
		return true
	}
	if err != nil || s.Owner == nil {
		return false
	}
	boot, err := bootID()
	return err == nil && (boot != s.BootID || !s.Owner.alive())
}
