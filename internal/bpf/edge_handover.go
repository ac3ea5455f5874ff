// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
)

// edgeHandover has the edge pass packets to the programs of an earlier agent, by tail calls
// (bpf/migrate/predecessor.h).
func edgeHandover() *Handover {
	return &Handover{Phase: EdgeTCMapMigration, Object: LoadEdgeMigrate, Enter: enterHandover, Leave: leaveHandover}
}

func enterHandover(d *Datapath) error {
	all, err := EdgeAttachments(d.BPFFS())
	if err != nil {
		return err
	}
	for _, a := range all {
		if err := notePredecessor(d, a); err != nil {
			return fmt.Errorf("the program at %s of device %d: %w", a.Hook, a.Device, err)
		}
	}
	return nil
}

func leaveHandover(d *Datapath) error {
	for _, hook := range migrationHooks {
		if err := d.Map(EdgeTCMapPredecessors).Delete(hook); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove the earlier agent's programs from the table of predecessors: %w", err)
		}
	}
	return nil
}

// migrationHooks are the places in the table of predecessors, by the name of the program that makes the tail
// call.
var migrationHooks = map[string]uint32{
	EdgeTCProgBeelineEdgeIngress: uint32(EdgeTCMigrationHookMIGRATION_INGRESS),
	EdgeTCProgBeelineEdgeEgress:  uint32(EdgeTCMigrationHookMIGRATION_EGRESS),
	EdgeL3ProgBeelineL3Ingress:   uint32(EdgeTCMigrationHookMIGRATION_L3INGRESS),
	EdgeL3ProgBeelineL3Egress:    uint32(EdgeTCMigrationHookMIGRATION_L3EGRESS),
}

// notePredecessor makes an attached program known to those that replace it, if it uses the predecessor's
// tables. All programs of a hook are equivalent at devices of a kind.
func notePredecessor(d *Datapath, a EdgeAttachment) error {
	hook, tc := migrationHooks[a.Hook.declared().ProgramFor(a.Device)]
	if !tc || a.Detached {
		return nil
	}
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(a.ProgramID))
	if err != nil {
		return err
	}
	defer program.Close()
	uses, err := usesOld(d, program)
	if err != nil || !uses {
		return err
	}
	return d.Map(EdgeTCMapPredecessors).Put(hook, program)
}

// usesOld reports whether a program uses the predecessor's conntrack table.
func usesOld(d *Datapath, program *ebpf.Program) (bool, error) {
	table := d.Predecessor(EdgeTCMapConntrack)
	if table == nil {
		return false, nil
	}
	of, err := table.Info()
	if err != nil {
		return false, err
	}
	info, err := program.Info()
	if err != nil {
		return false, err
	}
	id, _ := of.ID()
	used, _ := info.MapIDs()
	return slices.Contains(used, id), nil
}
