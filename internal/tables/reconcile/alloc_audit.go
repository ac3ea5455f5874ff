// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// audit repairs the tables. Rows of backends are repaired in place: a repair only restores what they should have held
// all along.
func (a *alloc) audit(to *auditor) {
	a.auditNames(to)
	a.auditSourceRanges(to)
	for key, b := range a.backends {
		if row := key.Row(); a.tables.Backends.Load(b.id) != row {
			to.repaired(a.tables.Backends.Store(b.id, row))
		}
	}
	reserved := map[bpf.ReservedPort]uint32{}
	for key, x := range a.reserved {
		if x.stored {
			reserved[key] = 1
		}
	}
	auditHash(to, a.tables.ReservedPorts, reserved)
}

// auditNames audits service names. Ports that wait to be freed keep their names; ports of which only the id is
// known have none.
func (a *alloc) auditNames(to *auditor) {
	want := map[uint32]bpf.ServiceName{}
	for key, p := range a.ports {
		name, err := codec.ServiceName(key)
		if err != nil {
			to.errs = append(to.errs, err)
			continue
		}
		want[p.id] = name
	}
	for _, x := range a.unreferenced {
		if p, ok := x.(*port); ok && p.key != (service.Port{}) && a.ports[p.key] != p {
			want[p.id], _ = codec.ServiceName(p.key)
		}
	}
	auditHash(to, a.tables.Services, want)
}

func (a *alloc) auditSourceRanges(to *auditor) {
	want := map[bpf.SourceRangeKey]uint32{}
	add := func(x *source) {
		for _, p := range x.prefixes {
			want[codec.SourceRangeKey(x.id, p)] = 1
		}
	}
	for _, x := range a.sources {
		add(x)
	}
	for _, x := range a.unreferenced {
		if x, ok := x.(*source); ok {
			add(x)
		}
	}
	auditHash(to, a.tables.SourceRanges, want)
}
