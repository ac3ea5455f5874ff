// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Mend puts back what was taken away while the agent ran: pins of tables, links,
// attachments. It returns what it put back.
func (d *Datapath) Mend() (mended []string, err error) {
	if mended, err = d.mendDirectory(); err != nil {
		return mended, err
	}
	for name, m := range d.maps {
		if _, err := os.Stat(d.tablePath(name)); !errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := pinCopy(m, d.tablePath(name)); err != nil {
			return mended, fmt.Errorf("pin table %s: %w", name, err)
		}
		mended = append(mended, "pin of table "+name)
	}
	attached, err := Attachments(d.options.BPFFS)
	if err != nil {
		return mended, err
	}
	missing := map[string]bool{}
	for _, h := range d.options.hooks() {
		missing[h.name] = true
	}
	for _, a := range attached {
		missing[a.Hook] = a.Detached
	}
	var again []string
	for _, h := range d.options.hooks() {
		if missing[h.name] {
			again = append(again, "hook "+h.name)
		}
	}
	if len(again) == 0 {
		return mended, nil
	}
	if err := d.reopenCgroup(); err != nil {
		return mended, err
	}
	if err := d.Attach(); err != nil {
		return mended, err
	}
	return append(mended, again...), nil
}

// mendDirectory makes the bpffs directory again if somebody has removed it, or
// what it consists of. The lock went with it.
func (d *Datapath) mendDirectory() (mended []string, err error) {
	lost := d.lostDirectories()
	if len(lost) == 0 {
		return nil, nil
	}
	if err := prepareBPFFS(d.options.BPFFS); err != nil {
		return nil, err
	}
	if lost[0] == d.options.BPFFS {
		lock, err := lockBPFFS(d.options.BPFFS)
		if err != nil {
			return nil, err
		}
		d.lock.Close()
		d.lock = lock
		if err := markNamespace(d.options.BPFFS); err != nil {
			return nil, err
		}
	}
	for _, dir := range lost {
		mended = append(mended, "directory "+dir)
	}
	return mended, nil
}

// lostDirectories are those that are not there any more; the bpffs directory
// itself is first, also if there is another one by now.
func (d *Datapath) lostDirectories() (lost []string) {
	held, err := d.lock.Stat()
	now, statErr := os.Stat(d.options.BPFFS)
	if err != nil || statErr != nil || !os.SameFile(held, now) {
		lost = append(lost, d.options.BPFFS)
	}
	for _, dir := range pinDirectories {
		path := filepath.Join(d.options.BPFFS, dir)
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			lost = append(lost, path)
		}
	}
	return lost
}

// reopenCgroup takes a directory that was removed and made again.
func (d *Datapath) reopenCgroup() error {
	dir, err := os.Open(d.cgroup)
	if err != nil {
		return err
	}
	d.cgroupDir.Close()
	d.cgroupDir = dir
	return nil
}

// pinCopy pins a map without a mark on the one that is used.
func pinCopy(m *ebpf.Map, path string) error {
	c, err := m.Clone()
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Pin(path)
}

// recoverPins pins the tables of programs that are attached although somebody
// has removed the pins: to begin with empty tables would take them from traffic.
func recoverPins(bpffs string, tables map[string]*ebpf.MapSpec) error {
	for _, h := range allHooks {
		if err := recoverFrom(bpffs, h, tables); err != nil {
			return fmt.Errorf("tables of the attached program %s: %w", h.name, err)
		}
	}
	return nil
}

func recoverFrom(bpffs string, h hook, tables map[string]*ebpf.MapSpec) error {
	l, err := link.LoadPinnedLink(linkPath(bpffs, h), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return err
	}
	return recoverProgram(bpffs, info.Program, tables)
}

// recoverProgram pins the tables of a program that is attached.
func recoverProgram(bpffs string, id ebpf.ProgramID, tables map[string]*ebpf.MapSpec) error {
	info, err := programInfo(id)
	if errors.Is(err, os.ErrNotExist) {
		return nil // detached, so nothing depends on it
	}
	if err != nil {
		return err
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		if err := recoverTable(bpffs, id, tables); err != nil {
			return err
		}
	}
	return nil
}

func recoverTable(bpffs string, id ebpf.MapID, tables map[string]*ebpf.MapSpec) error {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return err
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return err
	}
	for name := range tables {
		path := TablePath(bpffs, name)
		if truncated(name) != info.Name {
			continue
		}
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			return m.Pin(path)
		}
	}
	return nil
}
