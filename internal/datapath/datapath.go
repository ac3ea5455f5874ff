// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
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

// Open loads the programs over the tables that are pinned in the directory, or
// new ones where there are none. Nothing is attached or replaced yet. A table
// whose limit has changed is copied into a new one.
//
// If it fails where no agent has left anything, it leaves nothing either.
//
// Errors: *LockedError if another agent has the directory; *ebpf.VerifierError
// if the kernel refuses a program.
func Open(o Options) (d *Datapath, err error) {
	o.Limits = o.Limits.WithDefaults()
	d = &Datapath{options: o, replacement: haveReplacement}
	made := false
	defer func() {
		if err != nil {
			d.Close()
			d = nil
		}
		if err != nil && made {
			err = errors.Join(err, undo(o.BPFFS))
		}
	}()
	if err := rlimit.RemoveMemlock(); err != nil {
		return d, fmt.Errorf("lift the limit of locked memory: %w", err)
	}
	if err := RequiredFeatures(); err != nil {
		return d, err
	}
	if err := checkLayout(o.BPFFS); err != nil {
		return d, err
	}
	if err := refuseOtherNamespace(o.BPFFS); err != nil {
		return d, err
	}
	made = !hasPins(o.BPFFS)
	if err := prepareBPFFS(o.BPFFS); err != nil {
		return d, err
	}
	if d.lock, err = lockBPFFS(o.BPFFS); err != nil {
		return d, err
	}
	if err := markNamespace(o.BPFFS); err != nil {
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
	if err := d.refuseForeign(); err != nil {
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

// undo removes what an Open has made that failed, unless another agent has the directory.
func undo(bpffs string) error {
	if on, err := isFS(bpffs, unix.BPF_FS_MAGIC); err != nil || !on {
		return nil // it has failed before there was anything
	}
	err := Cleanup(bpffs)
	if locked := (*LockedError)(nil); errors.As(err, &locked) {
		return nil
	}
	return err
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
