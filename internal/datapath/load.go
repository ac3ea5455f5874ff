// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"beeline.io/beeline/internal/netns"
)

// Options say where the datapath lives.
type Options struct {
	// BPFFS is the directory of the pins, on a BPF file system or to become one.
	BPFFS string
	// CgroupRoot is the cgroup v2 directory to attach at; empty: the root.
	CgroupRoot string
	Limits     Limits
	// BindProtection: a bind() that would take a served NodePort or HostPort in
	// the host's network namespace is refused.
	BindProtection bool
	// Edge is nil if clients outside of the cluster are not served.
	Edge *EdgeOptions
}

// Datapath is the loaded programs and their tables. It holds the lock of its
// bpffs directory until Close.
type Datapath struct {
	Tables *Tables
	// Unprotected says why there is no bind protection although it was asked
	// for; empty: there is, or it was not.
	Unprotected string

	options   Options
	cgroup    string
	cgroupDir *os.File
	lock      *os.File
	maps      map[string]*ebpf.Map
	loading   sync.Mutex // of programs, some of which come late
	programs  map[string]*ebpf.Program
	resized   []string // tables whose pin still is the smaller or larger old one
	fresh     bool     // all tables are new
	// replacement says why XDP programs cannot share a device under this kernel.
	replacement func() error
}

// tablesDirectory bears the version of the tables' layout (bpf/lib/types.h). It
// changes with anything that an older or newer agent would read wrongly.
const tablesDirectory = "tables_v5"

// TablePath is where a table is pinned.
func TablePath(bpffs, name string) string { return filepath.Join(bpffs, tablesDirectory, name) }

// checkLayout refuses tables of another version.
func (d *Datapath) checkLayout() error {
	others, err := filepath.Glob(filepath.Join(d.options.BPFFS, "tables_v*"))
	for _, path := range others {
		if name := filepath.Base(path); name != tablesDirectory {
			return d.layoutError(name)
		}
	}
	return err
}

// Open loads the programs over the tables that are pinned in the directory, or
// new ones where there are none. Nothing is attached or replaced yet. A table
// whose limit has changed is copied into a new one.
//
// Errors: *LockedError if another agent has the directory; *ebpf.VerifierError
// if the kernel refuses a program.
func Open(o Options) (d *Datapath, err error) {
	o.Limits = o.Limits.WithDefaults()
	d = &Datapath{options: o, replacement: haveReplacement}
	defer func() {
		if err != nil {
			d.Close()
			d = nil
		}
	}()
	if err := rlimit.RemoveMemlock(); err != nil {
		return d, fmt.Errorf("lift the limit of locked memory: %w", err)
	}
	if err := RequiredFeatures(); err != nil {
		return d, err
	}
	if err := prepareBPFFS(o.BPFFS); err != nil {
		return d, err
	}
	if d.lock, err = lockBPFFS(o.BPFFS); err != nil {
		return d, err
	}
	if err := d.checkLayout(); err != nil {
		return d, err
	}
	sock, err := LoadSock()
	if err != nil {
		return d, err
	}
	if err := recoverPins(o.BPFFS, sock.Maps); err != nil {
		return d, err
	}
	if d.cgroup, err = CgroupRoot(o.CgroupRoot); err != nil {
		return d, err
	}
	if d.cgroupDir, err = os.Open(d.cgroup); err != nil { // a mount that is in use stays
		return d, err
	}
	if err := d.load(sock); err != nil {
		return d, err
	}
	if d.Tables, err = NewTables(d.maps); err != nil {
		return d, err
	}
	if o.Edge != nil {
		d.Tables.Balancers = d.Balancers()
		if d.Tables.Door, err = MapDoor(d.maps[EdgeTCMapDoors], d.Tables.WaitForReaders); err != nil {
			return d, err
		}
	}
	if events := d.Events(); events != nil {
		counted := &countedServices{Hash: d.Tables.Services, counts: d.maps[EdgeTCMapServiceCounts], sent: d.maps[EdgeTCMapServiceSent], gone: d.maps[EdgeTCMapServiceGone]}
		if d.fresh {
			counted.unused = 1
		}
		d.Tables.Services = counted
		return d, events.quiet()
	}
	return d, nil
}

// Close gives the directory free. What is attached stays attached; copies of
// tables that no attached program uses go.
func (d *Datapath) Close() {
	for _, name := range d.resized {
		os.Remove(d.tablePath(name) + "_new") // the next Open would, too
	}
	for _, p := range d.programs {
		p.Close()
	}
	for _, m := range d.maps {
		m.Close()
	}
	if d.cgroupDir != nil {
		d.cgroupDir.Close()
	}
	if d.lock != nil {
		d.lock.Close()
	}
}

// CgroupPath is the directory that the hooks are, or will be, attached to.
func (d *Datapath) CgroupPath() string { return d.cgroup }

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
	if v := spec.Variables[SockVarEdgeServes]; v != nil && d.options.Edge != nil {
		return errors.Join(v.Set(uint8(1)), d.setEdgeConstants(spec, false))
	}
	return nil
}

func (d *Datapath) tablePath(name string) string {
	return TablePath(d.options.BPFFS, name)
}

// pinnedTables finds the tables of an earlier agent that the programs can go
// on with, as they are or copied to another size.
func (d *Datapath) pinnedTables(spec *ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	found := map[string]*ebpf.Map{}
	for name, s := range spec.Maps {
		if strings.HasPrefix(name, ".") {
			continue // constants of the object: new with each load
		}
		// What an agent left that was killed while it changed a table's size.
		if err := os.Remove(d.tablePath(name) + "_new"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return found, err
		}
		m, err := ebpf.LoadPinnedMap(d.tablePath(name), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return found, fmt.Errorf("open pinned table %s: %w", name, err)
		}
		counters := isCounters(name)
		if counters && s.Compatible(m) == nil {
			found[name] = m
			continue
		}
		if !counters && (m.Type() != s.Type || m.KeySize() != s.KeySize || m.ValueSize() != s.ValueSize) {
			m.Close()
			return found, d.layoutError("table " + name)
		}
		if m.MaxEntries() != s.MaxEntries && s.MaxEntries != 0 || counters {
			other, err := d.replace(name, s, m)
			m.Close()
			if err != nil {
				return found, err
			}
			m = other
		}
		found[name] = m
	}
	return found, nil
}

// layoutError is for pins that this version cannot go on with.
func (d *Datapath) layoutError(what string) error {
	return fmt.Errorf("pinned %s has another layout than this version of Beeline writes: "+
		"run `beeline cleanup --bpffs %s` and start the agent again; Services are not translated in between",
		what, d.options.BPFFS)
}

// OpenTables opens the pinned tables of a directory for reading what they hold,
// whether an agent is running there or not.
func OpenTables(bpffs string) (*Tables, error) {
	maps := map[string]*ebpf.Map{}
	for name := range (Limits{}).entries() {
		m, err := ebpf.LoadPinnedMap(TablePath(bpffs, name), nil)
		if errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("no tables are pinned under %s: name the agent's --bpffs; if it is this one, no agent has run yet", bpffs)
		}
		if err != nil {
			return nil, fmt.Errorf("open pinned table %s under %s: %w", name, bpffs, err)
		}
		maps[name] = m
	}
	tables, err := NewTables(maps)
	if err != nil {
		return nil, err
	}
	balancers, err := ebpf.LoadPinnedMap(TablePath(bpffs, EdgeTCMapBalancers), nil)
	if errors.Is(err, os.ErrNotExist) {
		return tables, nil
	}
	tables.Balancers = kernelHash[NetworkKey, uint32]{EdgeTCMapBalancers, balancers}
	return tables, err
}
