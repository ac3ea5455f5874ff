// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// replace copies a table into one of another size, pinned beside it. The agent
// is the only writer, so both are equal until the first change; session
// affinity, which the programs write, may lose what is written meanwhile.
// Counters that there are now more of begin anew.
func (d *Datapath) replace(name string, s *ebpf.MapSpec, old *ebpf.Map) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(s)
	if err != nil {
		return nil, fmt.Errorf("make table %s with %d entries: %w", name, s.MaxEntries, err)
	}
	if !isCounters(name) {
		if err := d.copyTable(name, m, old); err != nil {
			m.Close()
			return nil, fmt.Errorf("copy table %s from %d to %d entries: %w (what is in use has to fit: raise --%s)",
				name, old.MaxEntries(), s.MaxEntries, err, limitFlags[name])
		}
	}
	if err := m.Pin(d.tablePath(name) + "_new"); err != nil {
		m.Close()
		return nil, fmt.Errorf("pin table %s: %w", name, err)
	}
	d.resized = append(d.resized, name)
	return m, nil
}

// copyTable copies all entries; of an array those that are not zero.
func (d *Datapath) copyTable(name string, to, from *ebpf.Map) error {
	switch name {
	case EdgeTCMapTracks, EdgeTCMapHalfOpen:
		return d.copyConntrack(name, to, from)
	case SockMapAffinity:
		return d.copyPinnedAffinity(to, from)
	}
	return copyTable(to, from)
}

// copyConntrack copies the entries of a table that programs are using, with their secret.
func (d *Datapath) copyConntrack(name string, to, from *ebpf.Map) error {
	secret, err := ebpf.LoadPinnedMap(d.tablePath(EdgeTCMapTableSecret), nil)
	if err != nil {
		return fmt.Errorf("open pinned table %s: %w", EdgeTCMapTableSecret, err)
	}
	defer secret.Close()
	return conntrackTable{m: to, secret: secret, spills: name == EdgeTCMapTracks}.copyFrom(from)
}

func copyTable(to, from *ebpf.Map) error {
	switch from.Type() {
	case ebpf.Array:
		return copyArray(to, from)
	case ebpf.LRUHash: // of a moment, as ports of fragments are
		return nil
	}
	var key, value []byte
	it := from.Iterate()
	for it.Next(&key, &value) {
		if err := to.Put(key, value); errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
			return errors.New("there are more in use")
		} else if err != nil {
			return err
		}
	}
	return it.Err()
}

func copyArray(to, from *ebpf.Map) error {
	source, unmap, err := mapMemory(from, 0, arrayBytes(from))
	if err != nil {
		return err
	}
	defer unmap()
	target, unmapTarget, err := mapMemory(to, 0, arrayBytes(to))
	if err != nil {
		return err
	}
	defer unmapTarget()
	used := source
	for len(used) > 0 && used[len(used)-1] == 0 {
		used = used[:len(used)-1]
	}
	if len(used) > int(arrayBytes(to)) {
		return fmt.Errorf("entry %d is in use, and entries are not moved", (len(used)-1)/int(arrayStride(from)))
	}
	copy(target, used)
	return nil
}

// swapResized makes the copies the pinned tables, once the attached programs
// use them.
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
