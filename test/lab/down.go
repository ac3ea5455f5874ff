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

// Down removes the lab of that name, whatever is left of it: processes in its
// cgroups, mounts, cgroups, namespaces, files. It needs no state for that but
// the name. A lab that does not exist is fine.
func Down(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	// Made if it is missing: without the lock it could be another Up's lab
	// that is removed.
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
	// The last lab takes the root along; the others keep it.
	if err := os.Remove(stateRoot); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeContents removes everything of a lab but its locked directory. Each
// step is tried even if one before it failed, but files go only after the
// mounts among them have gone.
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

// Sweep removes temporary labs whose process has gone, which it does not do by
// itself when it is killed. Labs that are just being made or removed are left.
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
	// A lab of the same name may have come since.
	if !abandoned(name) {
		return nil
	}
	return remove(name)
}

// abandoned says whether nobody will take the lab down any more.
func abandoned(name string) bool {
	s, err := readState(name)
	if errors.Is(err, fs.ErrNotExist) {
		// Killed before the first write, or about to write: the lock
		// tells which.
		return true
	}
	if err != nil || s.Owner == nil {
		return false
	}
	boot, err := bootID()
	return err == nil && (boot != s.BootID || !s.Owner.alive())
}
