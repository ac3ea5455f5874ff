// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf/settable"
)

// The phases of a migration (bpf/migrate/types.h).
type migrationPhase = EdgeTCMigrationPhase

const (
	migrationCopy  = EdgeTCMigrationPhaseMIGRATION_COPY
	migrationDrain = EdgeTCMigrationPhaseMIGRATION_DRAIN
	migrationDone  = EdgeTCMigrationPhaseMIGRATION_DONE
)

// A FollowRule copies what programs write to the predecessor's table while they run.
type FollowRule func(Following) error

// A Following is a pass of a migration over the tables that programs write.
type Following struct {
	Pass CopyPass
	// Old are the tables of the predecessor, New those of this agent, by the names of this version.
	Old, New map[string]*ebpf.Map
	Since    uint32 // RecentPass copies what was used since this second of CLOCK_MONOTONIC
	Tick     uint32 // when the pass began (set_table/set_table.h)
}

// CopyPass is a pass of a migration.
type CopyPass uint8

const (
	// FirstPass copies everything. No program uses the new tables.
	FirstPass CopyPass = iota
	// RecentPass copies again what was used since the first pass. No program uses the new tables.
	RecentPass
	// LastPass copies what the new tables lack, and what is newer in the old ones. Programs use both.
	LastPass
)

// follower is the state of a migration.
type follower struct {
	programs map[string]*ebpf.Program // attached to tc during the migration, by name
	since    uint32                   // Following.Since
}

func (f *follower) close() {
	for _, p := range f.programs {
		p.Close()
	}
	f.programs = nil
}

// A migrationStep is a step of a migration. It is to be done as long as the phase is not later than until.
type migrationStep struct {
	until migrationPhase
	do    func(*Datapath) error
}

// A Handover is how programs at devices, which change entries with each packet, pass packets to those of an earlier
// agent until its tables are migrated. At most one component has one.
type Handover struct {
	// Phase is the table with the phase of the migration.
	Phase string
	// Object reads the programs that are attached during the migration, in place of those with the same names.
	Object func() (*ebpf.CollectionSpec, error)
	// Enter makes the attached programs of the earlier agent known to them, and Leave forgets those.
	Enter, Leave func(*Datapath) error
}

// handover returns the Handover of the enabled components; nil: there is none.
func (d *Datapath) handover() *Handover {
	for _, c := range d.enabled {
		if c.Handover != nil {
			return c.Handover
		}
	}
	return nil
}

// handoverMigration are the steps with a Handover:
//
//   - Programs that pass all packets to the predecessor's replace these at all devices. Nothing uses the new tables,
//     which are filled.
//   - The phase changes: from now on new flows are in the new tables. The programs pass on only packets that the new
//     tables have no entry for. The socket hooks are replaced.
//   - When no program runs any more that has seen the previous phase, the last pass copies what has changed meanwhile.
//   - The plain programs replace those of the first step, and the old tables are removed.
//
// If an agent is killed, the next one continues from the phase that it left.
var handoverMigration = []migrationStep{
	{migrationDrain, (*Datapath).enterMigration},
	{migrationCopy, follow(FirstPass)},
	{migrationCopy, follow(RecentPass)},
	{migrationCopy, enterPhase(migrationDrain)},
	{migrationDone, (*Datapath).attachHooks},
	{migrationDrain, (*Datapath).WaitForReaders},
	{migrationDrain, follow(LastPass)},
	{migrationDrain, enterPhase(migrationDone)},
	{migrationDone, (*Datapath).leaveMigration},
}

// plainMigration are the steps if there is no Handover, or not any more. It has no phases: the last pass is correct
// whether or not programs use the new tables, so if an agent is killed at any point, the next one repeats
// everything.
var plainMigration = []migrationStep{
	{migrationDone, follow(LastPass)},
	{migrationDone, (*Datapath).attachHooks},
	{migrationDone, (*Datapath).WaitForReaders},
	{migrationDone, follow(LastPass)},
	{migrationDone, (*Datapath).leaveMigration},
}

// migrate replaces the programs of the predecessor by those of this agent, whose tables have another layout
// or size.
func (d *Datapath) migrate() error {
	steps, phase := plainMigration, migrationDone
	if d.handover() != nil {
		var err error
		if phase, err = d.migrationPhase(); err != nil {
			return err
		}
		steps = handoverMigration
	}
	for _, s := range steps {
		if phase > s.until {
			continue
		}
		if err := s.do(d); err != nil {
			return err
		}
	}
	return nil
}

func (d *Datapath) migrationPhase() (phase migrationPhase, err error) {
	err = d.maps[d.handover().Phase].Lookup(uint32(0), &phase)
	return phase, err
}

// enterPhase returns the step that changes the phase.
func enterPhase(phase migrationPhase) func(*Datapath) error {
	return func(d *Datapath) error { return d.maps[d.handover().Phase].Put(uint32(0), phase) }
}

// enterMigration attaches the programs that pass packets to the predecessor's.
func (d *Datapath) enterMigration() error {
	spec, err := d.handover().Object()
	if err != nil {
		return err
	}
	if d.follower.programs, err = d.loadObjects([]*ebpf.CollectionSpec{spec}); err != nil {
		return err
	}
	if err := d.handover().Enter(d); err != nil {
		return err
	}
	return d.replaceAtAllDevices()
}

// Predecessor returns a table of the earlier agent whose tables are migrated; nil: there is none.
func (d *Datapath) Predecessor(table string) *ebpf.Map {
	if d.old == nil {
		return nil
	}
	return d.old.maps[table]
}

// HasPredecessor reports whether the tables of an earlier agent are to be migrated.
func (d *Datapath) HasPredecessor() bool { return d.old != nil }

// leaveMigration attaches the plain programs and removes the old tables.
func (d *Datapath) leaveMigration() error {
	d.follower.close()
	if err := d.replaceAtAllDevices(); err != nil {
		return err
	}
	if h := d.handover(); h != nil {
		if err := h.Leave(d); err != nil {
			return err
		}
	}
	d.old.close()
	err := removeTables(d.old.path)
	d.old = nil
	return err
}

// follow returns the step that runs a pass for all tables that programs write.
func follow(pass CopyPass) func(*Datapath) error {
	return func(d *Datapath) error { return d.follow(pass) }
}

func (d *Datapath) follow(pass CopyPass) error {
	if pass == FirstPass {
		d.follower.since = Now() - 1 // a flow with this second as last_seen may have been used before its entry is read
	}
	f := Following{pass, d.old.maps, d.maps, d.follower.since, settable.Tick()}
	for _, t := range d.enabled.tables() {
		if t.Follow == nil || d.maps[t.Name] == nil || d.old.maps[t.Name] == nil {
			continue
		}
		if err := t.Follow(f); err != nil {
			return fmt.Errorf("copy table %s of the earlier agent: %w", t.Name, err)
		}
	}
	return nil
}

// FollowEntries is the rule of a hash table whose missing entries programs make again: a table of another
// layout starts empty.
func FollowEntries(name string) FollowRule {
	return func(f Following) error {
		from, to := f.Old[name], f.New[name]
		if f.Pass == RecentPass || from.KeySize() != to.KeySize() || from.ValueSize() != to.ValueSize() {
			return nil
		}
		var key, value []byte
		it := from.Iterate()
		for it.Next(&key, &value) {
			if err := to.Update(key, value, ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
				return err
			}
		}
		return it.Err()
	}
}
