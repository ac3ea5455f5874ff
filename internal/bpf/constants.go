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

// ofEdge computes a value from the edge's options. Without an edge the value in the object stays.
func ofEdge(value func(*EdgeOptions) (any, error)) ConstantValue {
	return func(d *Datapath) (any, error) {
		if d.options.Edge == nil {
			return nil, nil
		}
		return value(d.options.Edge)
	}
}

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

// The `const volatile` variables of the objects of sockets and edge. The verifier removes the branches that they
// exclude.
var socketConstants = map[string]ConstantValue{
	SockVarHostNetnsCookie: func(*Datapath) (any, error) { return netns.CurrentCookie() },
	SockVarWeaklyOrdered:   func(*Datapath) (any, error) { return settable.WeaklyOrdered(), nil },
	SockVarAffinitySets:    EntriesOf(SockMapAffinity),
	SockVarEdgeServes:      ofEdge(func(*EdgeOptions) (any, error) { return uint8(1), nil }),
	SockVarSnatFirst:       ofEdge(func(o *EdgeOptions) (any, error) { first, _ := o.snatRanges(); return first, nil }),
	SockVarSnatCount:       ofEdge(func(o *EdgeOptions) (any, error) { _, count := o.snatRanges(); return count, nil }),
	SockVarDryRun:          ObjectValue, // DryRun.load sets it
	SockGCVarMayDestroy:    ObjectValue, // sockgc.OpenIterators sets it
	SockGCVarAnyBackend:    ObjectValue, // sockgc sets it where no agent runs
}

var edgeConstants = map[string]ConstantValue{
	EdgeTCVarConntrackSets: EntriesOf(EdgeTCMapConntrack),
	EdgeTCVarUnrepliedSets: EntriesOf(EdgeTCMapUnreplied),
	EdgeTCVarCtTimeouts: ofEdge(func(o *EdgeOptions) (any, error) {
		if o.Timeouts == nil {
			return nil, nil
		}
		return *o.Timeouts, nil
	}),
	EdgeTCVarIcmpPerSecond: ofEdge(func(o *EdgeOptions) (any, error) {
		if o.ICMPRate == nil {
			return nil, nil
		}
		return *o.ICMPRate, nil
	}),
	EdgeTCVarIcmpBurst: ObjectValue,
	EdgeTCVarDsrAccept: ofEdge(func(o *EdgeOptions) (any, error) {
		if o.AcceptDSR {
			return uint8(1), nil
		}
		return uint8(0), nil
	}),
	EdgeTCVarHasPredecessor: func(d *Datapath) (any, error) {
		if d.old != nil {
			return uint8(1), nil
		}
		return uint8(0), nil
	},
	EdgeTCVarPseudoHeaderV6:  func(*Datapath) (any, error) { return PseudoHeaderV6(), nil },
	EdgeTCVarKernelEntries:   func(*Datapath) (any, error) { return KernelEntries(), nil },
	EdgeTCVarKernelConntrack: func(*Datapath) (any, error) { return KernelConntrack(), nil },
}

var socketStatsConstants = map[string]ConstantValue{
	SockStatsVarStatsPerBackend: func(d *Datapath) (any, error) {
		if d.options.SocketStats.PerBackend {
			return uint8(1), nil
		}
		return uint8(0), nil
	},
}

// snatRanges returns the first port and the length of each range; an unused second range has length 0.
func (o *EdgeOptions) snatRanges() (first, count [2]uint16) {
	for i, r := range o.SNATPorts {
		first[i], count[i] = r.First, r.Last-r.First+1
	}
	return first, count
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
