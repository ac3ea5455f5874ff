// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// A set is a range of slots with its content: the words of a history, the members, and a Maglev table, in
// this order. It never changes. A set from an earlier agent has no key until a frontend that uses it asks
// for the same members.
type set struct {
	key         service.SetKey
	extent      extent
	members     []*backend   // as often as in the slots; with a table each once
	table       *table       // Maglev; nil: the slots hold the members
	slotHistory *slotHistory // only of retained backends
	spare       uint32       // slots after the extent that are taken, too (roundSlots)
	refs        int
}

// historyRange, memberRange and tableRange return the locations of the parts of a set.
func (x *set) historyRange() codec.Range {
	return codec.Range{First: x.extent.first, Count: x.slotHistory.length()}
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

// chosenFrom returns the range that programs choose the backend of a new flow from.
func (x *set) chosenFrom() codec.Range {
	if x.table != nil {
		return x.tableRange()
	}
	return x.memberRange()
}

// setLists sets the lists of the entry's sets in the content, if programs need them.
func (e *entry) setLists() {
	var l codec.Lists
	needed := false
	for class := range service.SourceClasses {
		if x := e.sets[class]; x != nil {
			l.Members[class] = x.memberRange()
			needed = needed || x.table != nil
		}
	}
	if x := e.sets[retainedSet]; x != nil {
		l.Retained, needed = x.memberRange(), true
		if x.slotHistory != nil {
			l.History, l.HistoryDSR = x.historyRange(), x.slotHistory.dsr
		}
	}
	if needed {
		e.content.SetLists(l)
	}
}
