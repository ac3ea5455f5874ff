// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"os"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Options configure the datapath.
type Options struct {
	// BPFFS is the directory of the pins. A BPF file system is mounted there if it is not on one.
	BPFFS string
	// CgroupRoot is the cgroup v2 directory to attach to; empty: the root.
	CgroupRoot string
	Limits     Limits
	// BindProtection refuses a bind() to a served NodePort or HostPort in the host's network namespace.
	BindProtection bool
	// Components are all components, enabled or not. A component may use the tables of those before it; all use
	// those of Socket.
	Components []*Component
}

// Datapath is the loaded programs and their tables. It holds the lock of its bpffs directory until Close.
type Datapath struct {
	Tables *Tables
	// Unavailable are the components, and BindProtection, that this kernel cannot have although the options enable
	// them, with the reasons. Everything else works.
	Unavailable map[string]string

	options    Options
	components componentList // Options.Components
	enabled    componentList // those with objects
	cgroup     string
	cgroupDir  *os.File
	lock       *os.File
	maps       map[string]*ebpf.Map
	loading    sync.Mutex // guards programs, some of which are loaded after Open, and atDevices
	programs   map[string]*ebpf.Program
	atDevices  map[string][]int     // the indexes of the devices of SetDevices, by component; guarded by loading
	resized    []string             // tables whose pin still names the one of the old size (swapResized)
	old        *predecessor         // tables to migrate; nil: there are none
	follower   follower             // of the migration
	attached   atomic.Bool          // Attach has ended: what is missing from then on was removed by others
	restoring  sync.Mutex           // guards lock, and what follows
	restored   []string             // pins that RestorePins has restored and Repair has not named
	holding    sync.Mutex           // guards held
	held       map[string]link.Link // pinned links, by path (Hold)
}

// Close unlocks the directory. Attached programs stay attached. It removes copies of tables that no
// attached program uses.
func (d *Datapath) Close() {
	for _, name := range d.resized {
		os.Remove(d.tablePath(name) + "_new") // the next Open does so if this fails
	}
	for _, p := range d.programs {
		p.Close()
	}
	d.releaseLinks(func(string) bool { return true })
	d.follower.close()
	d.old.close()
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

// Map returns a pinned table of an enabled component; nil if there is none.
func (d *Datapath) Map(name string) *ebpf.Map { return d.maps[name] }

// BPFFS returns the directory of the pins.
func (d *Datapath) BPFFS() string { return d.options.BPFFS }

// CgroupPath returns the cgroup directory that Attach attaches the hooks to.
func (d *Datapath) CgroupPath() string { return d.cgroup }

// WaitForReaders is Tables.WaitForReaders.
func (d *Datapath) WaitForReaders() error { return d.Tables.WaitForReaders() }
