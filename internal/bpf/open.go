// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf/pinfs"
)

// opening is a Datapath while Open makes it.
type opening struct {
	*Datapath
	first   bool // the directory had no pins
	start   start
	objects []object
	made    []string // tables that are not pinned yet
}

// A start is where the tables of an agent come from.
type start uint8

const (
	// startFresh: no table is pinned, and no attached program has one. All are made.
	startFresh start = iota
	// startRestart: the tables of an earlier agent have the layout of this version. They are used, except those
	// that only agents write and whose size changes: these are copied (replace).
	startRestart
	// startResize: the size of a table changes that programs write. All tables are set aside, as if they had
	// another layout (setAside), and migrate copies what programs write to them.
	startResize
	// startMigration: the tables of an earlier agent have another layout. New ones are made beside them.
	startMigration
	// startResumed: an agent was killed during its migration, and has left the tables of both layouts.
	startResumed
)

// migrates reports whether there are tables of a predecessor.
func (s start) migrates() bool { return s >= startResize }

// makesTables reports whether all tables are made beside those of a predecessor.
func (s start) makesTables() bool { return s == startResize || s == startMigration }

// findStart decides how the agent starts. What programs attached by an earlier agent use is pinned then.
func (o *opening) findStart() error {
	resized, err := o.resizes()
	if err != nil {
		return err
	}
	switch others := otherLayouts(o.options.BPFFS); {
	case len(resized) > 0 && len(others) > 0:
		return fmt.Errorf("an agent was killed while it changed the size of tables: start one with the flags of that one, %s, and change them after that", strings.Join(resized, " "))
	case len(others) > 1:
		return layoutError(o.options.BPFFS, strings.Join(others, ", "))
	case len(resized) > 0:
		o.start = startResize
	case len(others) == 1 && o.hasTables():
		o.start = startResumed
	case len(others) == 1:
		o.start = startMigration
	default:
		err = o.recoverPins() // during a migration the attached programs use the predecessor's tables
		if o.hasTables() {
			o.start = startRestart
		}
	}
	return err
}

// hasTables reports whether tables of this version are pinned.
func (o *opening) hasTables() bool {
	for _, t := range o.enabled.tables() {
		if _, err := os.Stat(o.tablePath(t.Name)); err == nil {
			return true
		}
	}
	return false
}

// A step of Open. undo leaves nothing of what do has done outside of this process, even if do has failed half-way; nil:
// it does nothing there that the steps before it do not undo.
type step struct{ do, undo func(*opening) error }

// openSteps are what Open does, in this order. If one fails, it and those before it are undone, in reverse order.
var openSteps = []step{
	{do: func(o *opening) error { return o.components.check() }},
	{do: (*opening).prepareKernel},
	{do: func(o *opening) error { return checkLayout(o.options.BPFFS) }},
	{do: func(o *opening) error { return refuseOtherNamespace(o.options.BPFFS) }},
	{do: (*opening).makeDirectories, undo: (*opening).cleanUp},
	{do: (*opening).takeLock, undo: (*opening).close},
	{do: func(o *opening) error { return markNamespace(o.options.BPFFS) }},
	{do: (*opening).openCgroup},
	{do: func(o *opening) error { return removeNewTables(o.options.BPFFS) }},
	{do: (*opening).readObjects},
	{do: (*opening).findStart},
	{do: (*opening).setAside, undo: (*opening).putBack},
	{do: (*opening).openPredecessor},
	{do: (*opening).openTables},
	{do: (*opening).loadEarly},
	{do: (*opening).pinTables},
	{do: (*opening).removeUndeclaredTables},
	{do: (*opening).refuseForeign},
	{do: (*opening).wrapTables},
}

// Open loads the programs with the tables that are pinned in the directory, and makes the missing ones. It
// attaches and replaces no program. A table whose limit has changed is copied to a new one.
//
// If Open fails and the directory had no pins before, it leaves none.
//
// Errors: *pinfs.LockedError if another agent has the directory; *ebpf.VerifierError
// if the kernel refuses a program.
func Open(options Options) (*Datapath, error) {
	options.Limits = options.Limits.WithDefaults()
	o := &opening{Datapath: &Datapath{
		options: options, components: options.Components, atDevices: map[string][]int{},
		maps: map[string]*ebpf.Map{}, programs: map[string]*ebpf.Program{}, Unavailable: map[string]string{},
	}}
	for i, s := range openSteps {
		err := s.do(o)
		if err == nil {
			continue
		}
		for _, done := range slices.Backward(openSteps[:i+1]) {
			if done.undo != nil {
				err = errors.Join(err, done.undo(o))
			}
		}
		return nil, err
	}
	return o.Datapath, nil
}

// prepareKernel loads what the kernel has as a module, and checks that it has what is required.
func (o *opening) prepareKernel() error {
	if err := rlimit.RemoveMemlock(); err != nil {
		return fmt.Errorf("lift the limit of locked memory: %w", err)
	}
	for _, c := range o.components {
		if c.Conntrack != nil && c.Conntrack() {
			loadConntrack()
		}
	}
	return requiredFeatures()
}

func (o *opening) makeDirectories() error {
	o.first = !HasPins(o.options.BPFFS)
	return pinfs.Prepare(o.options.BPFFS, pinDirectories)
}

// cleanUp removes what a failed Open has made in a directory without pins, unless another agent uses it.
func (o *opening) cleanUp() error {
	if on, err := pinfs.IsFS(o.options.BPFFS, unix.BPF_FS_MAGIC); !o.first || err != nil || !on {
		return nil // not on a BPF file system: Open failed before it made anything
	}
	err := Cleanup(o.options.BPFFS, nil, o.components...)
	if locked := (*pinfs.LockedError)(nil); errors.As(err, &locked) {
		return nil
	}
	return err
}

func (o *opening) takeLock() (err error) {
	if o.lock, err = pinfs.Lock(o.options.BPFFS); err != nil {
		return err
	}
	if err := pinfs.TakeOverDrain(o.options.BPFFS); err != nil {
		return fmt.Errorf("--pins: %w", err)
	}
	return nil
}

// close also unlocks the directory.
func (o *opening) close() error {
	o.Close()
	return nil
}

func (o *opening) openCgroup() (err error) {
	if o.cgroup, err = CgroupRoot(o.options.CgroupRoot); err != nil {
		return err
	}
	o.cgroupDir, err = os.Open(o.cgroup) // keeps the mount busy
	return err
}

// wrapTables sets Tables.
func (o *opening) wrapTables() (err error) {
	if o.Tables, err = NewTables(o.maps); err != nil {
		return err
	}
	if o.Tables.Prefilter, err = MapPrefilter(o.maps[SockMapPrefilters], o.Tables.WaitForReaders); err != nil {
		return err
	}
	if m := o.maps[EdgeTCMapBalancers]; m != nil { // there is an edge
		o.Tables.Prefilter.pods = true
		o.Tables.Balancers = NewHash[NetworkKey, Balancer](o.components.table(EdgeTCMapBalancers), m)
	}
	o.countServices(o.start == startFresh)
	return nil
}
