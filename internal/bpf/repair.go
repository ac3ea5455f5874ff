// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf/pinfs"
)

// Repair restores what was removed while the agent ran: pins of tables, links, attachments. It returns what
// it restored. Pins come first: a hook is known by the pin of its link, and one without would be attached twice. Links
// that are new are held last.
func (d *Datapath) Repair() (repaired []string, err error) {
	for _, repair := range []func() ([]string, error){d.restoredPins, d.repairHooks, d.repairDevices} {
		some, err := repair()
		repaired = append(repaired, some...)
		if err != nil {
			return repaired, err
		}
	}
	return repaired, d.holdLinks()
}

// restorers restore pins, in this order: each needs its directory; a link without pin detaches its program when the
// agent ends; without the pin of a table the next agent would start with an empty one. The agent itself does not need
// the pins of programs.
var restorers = []func(*Datapath) ([]string, error){
	(*Datapath).repairDirectory, (*Datapath).repinLinks, (*Datapath).repairPins, (*Datapath).repinPrograms,
}

// RestorePins restores directories and pins that another program has removed. The next Repair names them. It may be
// called from any goroutine, and does nothing before Attach.
func (d *Datapath) RestorePins() error {
	if !d.attached.Load() {
		return nil
	}
	d.restoring.Lock()
	defer d.restoring.Unlock()
	for _, restore := range restorers {
		some, err := restore(d)
		d.restored = append(d.restored, some...)
		if err != nil {
			return err
		}
	}
	return nil
}

// restoredPins restores pins, and returns all that have been restored since the last time.
func (d *Datapath) restoredPins() (restored []string, err error) {
	err = d.RestorePins()
	d.restoring.Lock()
	defer d.restoring.Unlock()
	restored, d.restored = d.restored, nil
	return restored, err
}

// repairPins restores pins of tables.
func (d *Datapath) repairPins() (repaired []string, err error) {
	for name, m := range d.maps {
		if _, err := os.Stat(d.tablePath(name)); !errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := pinCopy(m, d.tablePath(name)); err != nil {
			return repaired, fmt.Errorf("pin table %s: %w", name, err)
		}
		repaired = append(repaired, "pin of table "+name)
	}
	return repaired, nil
}

// repairHooks attaches detached cgroup hooks again.
func (d *Datapath) repairHooks() (repaired []string, err error) {
	attached, err := d.Attachments()
	if err != nil {
		return nil, err
	}
	missing := map[string]bool{}
	for _, h := range d.hooks() {
		missing[h.Name] = true
	}
	for _, a := range attached {
		missing[a.Hook] = a.Detached
	}
	for _, h := range d.hooks() {
		if missing[h.Name] {
			repaired = append(repaired, "hook "+h.Name)
		}
	}
	if len(repaired) == 0 {
		return nil, nil
	}
	if err := d.reopenCgroup(); err != nil {
		return nil, err
	}
	if err := d.Attach(); err != nil {
		return nil, err
	}
	return repaired, nil
}

// repairDirectory restores the bpffs directory and its subdirectories. The lock is lost with the directory,
// so it takes a new one.
func (d *Datapath) repairDirectory() (repaired []string, err error) {
	lost := d.lostDirectories()
	if len(lost) == 0 {
		return nil, nil
	}
	if err := pinfs.Prepare(d.options.BPFFS, pinDirectories); err != nil {
		return nil, err
	}
	if lost[0] == d.options.BPFFS {
		lock, err := pinfs.Lock(d.options.BPFFS)
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
		repaired = append(repaired, "directory "+dir)
	}
	return repaired, nil
}

// lostDirectories returns the directories that were removed. The bpffs directory is first; it counts as
// removed if another one has its name.
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

// reopenCgroup opens the cgroup directory again, which may have been replaced.
func (d *Datapath) reopenCgroup() error {
	dir, err := os.Open(d.cgroup)
	if err != nil {
		return err
	}
	d.cgroupDir.Close()
	d.cgroupDir = dir
	return nil
}

// pinCopy pins a clone of a map: Map.Pin would try to move the map's previous pin, which has been removed.
func pinCopy(m *ebpf.Map, path string) error {
	c, err := m.Clone()
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Pin(path)
}

// recoverPins restores the pins of the tables of attached programs. With new, empty tables existing traffic would lose
// its Services.
func (o *opening) recoverPins() error {
	for _, c := range o.enabled {
		attached, err := c.attachedPrograms(o.options.BPFFS)
		if err != nil {
			return err
		}
		for _, p := range attached {
			if err := recoverProgram(o.options.BPFFS, p.ID, c.pinnedNames()); err != nil {
				return fmt.Errorf("tables of the program attached to %s: %w", p.At, err)
			}
		}
	}
	return nil
}

// recoverProgram pins those of the tables that an attached program uses and that have no pin.
func recoverProgram(bpffs string, id ebpf.ProgramID, tables []string) error {
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

func recoverTable(bpffs string, id ebpf.MapID, tables []string) error {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return err
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return err
	}
	for _, name := range tables {
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
