// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"math/bits"
	"slices"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// A set is a range of slots with its content: the words of a history, the members, and a Maglev table, in
// this order. It never changes. A set from an earlier agent has no key until a frontend that uses it asks
// for the same members.
type set struct {
	key     service.SetKey
	extent  extent
	members []*backend   // as often as in the slots; with a table each once
	table   *table       // Maglev; nil: the slots hold the members
	history *slotHistory // only of retained backends
	spare   uint32       // slots after the extent that are taken, too (roundSlots)
	refs    int
}

// slotCount returns the number of slots that a set takes.
func (x *set) slotCount() uint32 { return x.extent.count + x.spare }

// historyRange, memberRange and tableRange return the locations of the parts of a set.
func (x *set) historyRange() codec.Range {
	return codec.Range{First: x.extent.first, Count: x.history.length()}
}

func (x *set) memberRange() codec.Range {
	return codec.Range{First: codec.End(x.historyRange()), Count: uint32(len(x.members))}
}

func (x *set) tableRange() codec.Range {
	if x.table == nil {
		return codec.Range{First: codec.End(x.memberRange())}
	}
	return codec.Range{First: codec.End(x.memberRange()), Count: x.table.size}
}

// chosenFrom returns the range that programs choose the backend of a new flow from, and whether it is a Maglev table.
func (x *set) chosenFrom() (slots codec.Range, maglev bool) {
	if x.table != nil {
		return x.tableRange(), true
	}
	return x.memberRange(), false
}

// backends returns all backends that a set refers to.
func (x *set) backends() []*backend {
	if x.history == nil {
		return x.members
	}
	return slices.Concat(x.members, x.history.backends)
}

// rows returns the rows of the members by their ids.
func (x *set) rows() map[uint32]bpf.Backend {
	all := map[uint32]bpf.Backend{}
	for _, b := range x.members {
		all[b.id] = b.key.Row()
	}
	return all
}

// setsOf are the sets of a frontend: by class of source, and last that of retained backends. nil: none.
type setsOf [retainedSet + 1]*set

const retainedSet = service.SourceClasses

// outside returns the set of external clients: only these can do without conntrack entries.
func (all *setsOf) outside() *set { return all[service.FromOutside] }

// history returns the history; nil for none.
func (all *setsOf) history() *slotHistory {
	if all[retainedSet] == nil {
		return nil
	}
	return all[retainedSet].history
}

// each iterates over the sets.
func (all *setsOf) each(yield func(*set) bool) {
	for _, x := range all {
		if x != nil && !yield(x) {
			return
		}
	}
}

// members iterates over the members of the sets, each as often as it is in slots.
func (all *setsOf) members(yield func(*backend) bool) {
	for x := range all.each {
		for _, b := range x.members {
			if !yield(b) {
				return
			}
		}
	}
}

// contain reports whether a member matches.
func (all *setsOf) contain(matches func(codec.Backend) bool) bool {
	for b := range all.members {
		if matches(b.key) {
			return true
		}
	}
	return false
}

// lists returns the lists of the sets, and whether programs need them.
func (all *setsOf) lists() (l codec.Lists, needed bool) {
	for class := range service.SourceClasses {
		if x := all[class]; x != nil {
			l.Members[class] = x.memberRange()
			needed = needed || x.table != nil
		}
	}
	if x := all[retainedSet]; x != nil {
		l.Retained, needed = x.memberRange(), true
		if x.history != nil {
			l.History, l.HistoryDSR = x.historyRange(), x.history.dsr
		}
	}
	return l, needed
}

// slotsOf returns the number of slots of a set; a Maglev table has the list of its members in front.
func slotsOf(set *service.BackendSet, tableSize uint32) uint32 {
	if tableSize > 0 {
		return roundSlots(tableSize + uint32(len(set.Backends)))
	}
	divisor, sum := uint8(0), uint32(0)
	for _, b := range set.Backends {
		divisor = gcd(divisor, max(b.Weight, 1))
		sum += uint32(max(b.Weight, 1))
	}
	if divisor == 0 {
		return 0
	}
	return roundSlots(sum / uint32(divisor))
}

// smallExtent is the number of slots from which on extents are rounded up.
const smallExtent = 128

// roundSlots returns the number of slots to allocate for n. Large extents come in few sizes, up to 6 %
// apart, so that a set that has grown a little fits where another one was. The sizes lie halfway between
// round numbers: Maglev tables have a little less than a power of two, and with their members a little
// more.
func roundSlots(n uint32) uint32 {
	if n < smallExtent {
		return n
	}
	unit := uint32(1) << (bits.Len32(n+n/16) - 6)
	return (n+unit/2-1)/unit*unit + unit/2
}
