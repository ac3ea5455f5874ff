// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf/mappedarray"
)

// A CopyRule fills the table `to`, which has another size, from the pinned table `from`. Programs use
// `from` meanwhile.
type CopyRule func(d *Datapath, to, from *ebpf.Map) error

// StartEmpty copies nothing: the contents are counters, last for milliseconds, or are cleared by a new
// agent in any case.
func StartEmpty(*Datapath, *ebpf.Map, *ebpf.Map) error { return nil }

// CopyEntries copies all entries of a hash, LRU or longest-prefix table.
func CopyEntries(_ *Datapath, to, from *ebpf.Map) error {
	var key, value []byte
	it := from.Iterate()
	for it.Next(&key, &value) {
		if err := to.Put(key, value); errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
			return errors.New("more entries are in use")
		} else if err != nil {
			return err
		}
	}
	return it.Err()
}

// CopyArray copies the rows of an array up to the last one that is not zero.
func CopyArray(_ *Datapath, to, from *ebpf.Map) error {
	source, unmap, err := mappedarray.Map(from, 0, mappedarray.Bytes(from))
	if err != nil {
		return err
	}
	defer unmap()
	target, unmapTarget, err := mappedarray.Map(to, 0, mappedarray.Bytes(to))
	if err != nil {
		return err
	}
	defer unmapTarget()
	used := source
	for len(used) > 0 && used[len(used)-1] == 0 {
		used = used[:len(used)-1]
	}
	if len(used) > int(mappedarray.Bytes(to)) {
		return fmt.Errorf("entry %d is in use, and entries are not moved", (len(used)-1)/int(mappedarray.Stride(from)))
	}
	copy(target, used)
	return nil
}

// replace makes a copy of a pinned table with another size, and pins it beside the table. The agent is the only
// writer, so both stay equal until its first change; what programs write to a table without Follow between the copy
// and the replacement of the programs is lost.
func (d *Datapath) replace(t *Table, s *ebpf.MapSpec, old *ebpf.Map) (*ebpf.Map, error) {
	if t.Copy == nil {
		return nil, layoutError(d.options.BPFFS, "table "+t.Name)
	}
	m, err := d.copyTable(t, s, old)
	if err != nil {
		return nil, err
	}
	if err := m.Pin(d.tablePath(t.Name) + "_new"); err != nil {
		m.Close()
		return nil, fmt.Errorf("pin table %s: %w", t.Name, err)
	}
	d.resized = append(d.resized, t.Name)
	return m, nil
}

// copyTable makes a table of another size or layout, and fills it from the old one by the table's rule.
func (d *Datapath) copyTable(t *Table, s *ebpf.MapSpec, old *ebpf.Map) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(s)
	if err != nil {
		return nil, fmt.Errorf("create table %s with %d entries: %w", t.Name, s.MaxEntries, err)
	}
	if err = t.Copy(d, m, old); err == nil {
		return m, nil
	}
	m.Close()
	err = fmt.Errorf("copy table %s from %d to %d entries: %w", t.Name, old.MaxEntries(), s.MaxEntries, err)
	if t.Limit != nil {
		err = fmt.Errorf("%w (entries in use must fit: raise --%s)", err, t.Limit.Flag)
	}
	return nil, err
}

// pinnedSize returns the maximum number of entries of a pinned table; 0 if it does not exist.
func pinnedSize(path string) (uint32, error) {
	m, err := ebpf.LoadPinnedMap(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open pinned table %s: %w", filepath.Base(path), err)
	}
	defer m.Close()
	return m.MaxEntries(), nil
}

// swapResized replaces the pins of resized tables by those of their copies, which the attached programs use
// now.
func (d *Datapath) swapResized() error {
	for len(d.resized) > 0 {
		path := d.tablePath(d.resized[0])
		if err := os.Rename(path+"_new", path); err != nil {
			return err
		}
		d.resized = d.resized[1:]
	}
	return nil
}
