// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf/settable"
	"beeline.io/beeline/internal/node/netns"
)

// A ConstantValue computes the value of a constant; nil keeps the value in the object.
type ConstantValue func(*Datapath) (any, error)

// ObjectValue keeps the value in the object.
func ObjectValue(*Datapath) (any, error) { return nil, nil }

// EntriesOf returns the size of a table that exists already.
func EntriesOf(table string) ConstantValue {
	return func(d *Datapath) (any, error) {
		m := d.maps[table]
		if m == nil {
			return nil, fmt.Errorf("table %s does not exist yet", table)
		}
		return m.MaxEntries(), nil
	}
}

// The `const volatile` variables of the objects of sockets. The verifier removes the branches that they
// exclude.
var socketConstants = map[string]ConstantValue{
	SockVarHostNetnsCookie: func(*Datapath) (any, error) { return netns.CurrentCookie() },
	SockVarWeaklyOrdered:   func(*Datapath) (any, error) { return settable.WeaklyOrdered(), nil },
	SockVarAffinitySets:    EntriesOf(SockMapAffinity),
	SockVarEdgeServes:      ObjectValue, // the edge sets this and the next two
	SockVarSnatFirst:       ObjectValue,
	SockVarSnatCount:       ObjectValue,
	SockVarDryRun:          ObjectValue, // DryRun.load sets it
	SockGCVarMayDestroy:    ObjectValue, // sockgc.OpenIterators sets it
	SockGCVarAnyBackend:    ObjectValue, // sockgc sets it where no agent runs
}

// Flag is the value of a constant of type bool.
func Flag(on bool) uint8 {
	if on {
		return 1
	}
	return 0
}

// setConstants sets the constants of an object. An undeclared constant is an error: nothing would set its
// value.
func (d *Datapath) setConstants(spec *ebpf.CollectionSpec) error {
	for name, variable := range spec.Variables {
		if !variable.Constant() {
			continue
		}
		compute := d.components.constant(name)
		if compute == nil {
			return fmt.Errorf("constant %s of the BPF object is not declared: add it to the Constants of its component (internal/bpf/component.go)", name)
		}
		value, err := compute(d)
		if err == nil && value != nil {
			err = variable.Set(value)
		}
		if err != nil {
			return fmt.Errorf("set constant %s: %w", name, err)
		}
	}
	return nil
}
