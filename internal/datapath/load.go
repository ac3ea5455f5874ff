// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/netns"
)

// load loads the programs that are wanted over one set of tables: the tables first, and
// then the programs of all files side by side, for most of the time is the verifier's.
func (d *Datapath) load(sock *ebpf.CollectionSpec) error {
	for name, entries := range d.options.Limits.entries() {
		sock.Maps[name].MaxEntries = entries
	}
	pinned, err := d.pinnedTables(sock)
	defer closeMaps(pinned)
	if err != nil {
		return err
	}
	d.maps, d.programs = map[string]*ebpf.Map{}, map[string]*ebpf.Program{}
	if err := d.makeTables(sock, pinned); err != nil {
		return err
	}
	specs := []*ebpf.CollectionSpec{sock}
	bind, err := d.bindSpec()
	if err != nil {
		return err
	}
	if bind != nil {
		specs = append(specs, bind)
	}
	edge, pinnedEdge, err := d.edgeSpecs()
	defer closeMaps(pinnedEdge)
	if err != nil {
		return err
	}
	if err := d.loadPrograms(append(specs, edge...)); err != nil {
		return err
	}
	d.fresh = len(pinned)+len(pinnedEdge) == 0
	for name, m := range d.maps {
		if pinned[name] != nil || pinnedEdge[name] != nil {
			continue
		}
		if err := m.Pin(d.tablePath(name)); err != nil {
			return fmt.Errorf("pin table %s: %w", name, err)
		}
	}
	return nil
}

func closeMaps(all map[string]*ebpf.Map) {
	for _, m := range all {
		m.Close()
	}
}

// bindSpec is what protects served ports, nil if that is not wanted. Without the
// kernel's types all else works.
func (d *Datapath) bindSpec() (*ebpf.CollectionSpec, error) {
	if !d.options.BindProtection {
		return nil, nil
	}
	if !kernelHas()[kernelTypes] {
		d.options.BindProtection = false
		d.Unprotected = "bind() of NodePorts and HostPorts is not refused, because this kernel does not tell its types (CONFIG_DEBUG_INFO_BTF): " +
			"use another kernel, or --bind-protection=false if that is all right"
		return nil, nil
	}
	spec, err := LoadBind()
	if err != nil {
		return nil, err
	}
	return spec, d.makeTables(spec, nil)
}

// makeTables takes the tables of a file over that are pinned, and makes those that are
// not there.
func (d *Datapath) makeTables(spec *ebpf.CollectionSpec, pinned map[string]*ebpf.Map) (err error) {
	for name, s := range spec.Maps {
		if isScratch(name, s) || d.maps[name] != nil {
			continue
		}
		m := pinned[name]
		if m != nil {
			m, err = m.Clone()
		} else {
			m, err = ebpf.NewMap(s)
		}
		if err != nil {
			return fmt.Errorf("make table %s: %w", name, err)
		}
		d.maps[name] = m
		if name == EdgeTCMapTableSecret {
			if err := InitTableSecret(m); err != nil {
				return err
			}
		}
	}
	return nil
}

// loadPrograms loads the programs of files over the tables.
func (d *Datapath) loadPrograms(specs []*ebpf.CollectionSpec) error {
	for _, spec := range specs {
		if err := d.setConstants(spec); err != nil {
			return err
		}
	}
	var group sync.WaitGroup
	loaded, failed := make([]*ebpf.Collection, len(specs)), make([]error, len(specs))
	for i, spec := range specs {
		tables := tablesOf(spec, d.maps)
		for name, m := range tables {
			spec.Maps[name].MaxEntries = m.MaxEntries()
		}
		group.Go(func() {
			loaded[i], failed[i] = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: tables, Cache: kernelBTF.Load()})
		})
	}
	group.Wait()
	d.loading.Lock()
	defer d.loading.Unlock()
	for _, c := range loaded {
		if c == nil {
			continue
		}
		for name := range c.Programs {
			d.programs[name] = c.DetachProgram(name)
		}
		c.Close()
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("load the programs: %w", err)
	}
	return nil
}

// program is a loaded program, nil if there is none of that name.
func (d *Datapath) program(name string) *ebpf.Program {
	d.loading.Lock()
	defer d.loading.Unlock()
	return d.programs[name]
}

// setConstants sets those that an object has of all of them.
func (d *Datapath) setConstants(spec *ebpf.CollectionSpec) error {
	cookie, err := netns.CurrentCookie()
	if err != nil {
		return err
	}
	if v := spec.Variables[SockVarHostNetnsCookie]; v != nil {
		if err := v.Set(cookie); err != nil {
			return err
		}
	}
	if v := spec.Variables[SockVarAffinitySets]; v != nil {
		err := errors.Join(v.Set(d.maps[SockMapAffinity].MaxEntries()), spec.Variables[SockVarWeaklyOrdered].Set(weaklyOrdered()))
		if err != nil {
			return err
		}
	}
	if v := spec.Variables[SockVarEdgeServes]; v != nil && d.options.Edge != nil {
		return errors.Join(v.Set(uint8(1)), d.setEdgeConstants(spec, false))
	}
	return nil
}
