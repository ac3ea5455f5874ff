// SPDX-License-Identifier: Apache-2.0

// Package codec encodes and decodes the rows of the tables of Services, in the types of package service. It
// is the only package that interprets the fields of rows and the words in slots (bpf/lb/types.h).
package codec

import (
	"fmt"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
)

// Range is a range of slots.
type Range = bpf.SlotRange

// End returns the first slot after a range.
func End(r Range) uint32 { return r.First + r.Count }

// Valid reports whether a range lies within a table of so many slots.
func Valid(r Range, slots uint32) bool { return End(r) >= r.First && End(r) <= slots }

// A Frontend is a frontend in the tables: its row, and its row of lists, zero if it has none. Values are
// comparable.
type Frontend struct {
	row   bpf.Frontend // without the number of the row of lists
	lists bpf.FrontendLists
}

// NewFrontend encodes a frontend of the service port with an ID, without its verdicts, lists and admitted sources.
func NewFrontend(f *service.Frontend, port uint32) Frontend {
	row := bpf.Frontend{
		Key:             FrontendKey(f.Key),
		Service:         port,
		AffinitySeconds: uint32(f.Affinity / time.Second),
		Kind:            uint8(f.Kind),
		Dsr:             uint8(DSRKind(f.DSR)),
	}
	for flag, on := range map[uint16]bool{
		uint16(bpf.FlagUntracked):     f.Untracked,
		uint16(bpf.FlagLoopbackExact): f.LoopbackExact,
		uint16(bpf.FlagOwnAddress):    f.OwnAddress,
		uint16(bpf.FlagByPacket):      f.ByPacket,
	} {
		if on {
			row.Flags |= flag
		}
	}
	for class, d := range f.Decisions {
		if d.Masquerade {
			row.Flags |= uint16(bpf.FlagMasquerade) << class
		}
	}
	return Frontend{row: row}
}

// LoadFrontend reads a frontend. It returns an error if the tables have no such row, or if the row names lists that
// are not its own.
func LoadFrontend(t *bpf.Tables, number uint32) (Frontend, error) {
	if number >= t.FrontendRows.Len() {
		return Frontend{}, fmt.Errorf("there is no row %d in table %s, which has %d", number, bpf.SockMapFrontendRows, t.FrontendRows.Len())
	}
	f := Frontend{row: t.FrontendRows.Load(number)}
	if f.row.Lists == 0 {
		return f, nil
	}
	if f.row.Lists != number {
		return Frontend{}, fmt.Errorf("row %d of table %s names the lists of row %d", number, bpf.SockMapFrontendRows, f.row.Lists)
	}
	f.row.Lists, f.lists = 0, t.FrontendLists.Load(number)
	return f, nil
}

// Store writes a frontend. No index entry may lead to the row yet.
func (f Frontend) Store(t *bpf.Tables, number uint32) error {
	if f.hasLists() {
		if err := t.FrontendLists.Store(number, f.lists); err != nil {
			return err
		}
		f.row.Lists = number
	}
	return t.FrontendRows.Store(number, f.row)
}

// EraseFrontend clears a row that no program can read any more.
func EraseFrontend(t *bpf.Tables, number uint32) error {
	if t.FrontendLists.Load(number) != (bpf.FrontendLists{}) {
		if err := t.FrontendLists.Store(number, bpf.FrontendLists{}); err != nil {
			return err
		}
	}
	return t.FrontendRows.Store(number, bpf.Frontend{})
}

// SetVerdict sets the verdict of a class of clients that has no backends.
func (f *Frontend) SetVerdict(class service.SourceClass, v service.Verdict) {
	f.row.Decisions[class] = bpf.Decision{First: uint32(verdicts[v])}
}

// SetSlots sets the backend set of a class of clients: its members, or a Maglev table.
func (f *Frontend) SetSlots(class service.SourceClass, slots Range, maglev bool) {
	f.row.Decisions[class] = bpf.Decision(slots)
	if maglev {
		f.row.Flags |= uint16(bpf.FlagMaglev)
	}
}

// Lists are the ranges of slots that few packets need.
type Lists struct {
	Members  [service.SourceClasses]Range // of the sets of Slots, sorted
	Retained Range
	History  Range // one word per slot of an earlier table (HistoryWord)
	// HistoryDSR is the frontend's kind of DSR while it had that table.
	HistoryDSR bpf.DSR
}

// SetLists sets the lists of a frontend.
func (f *Frontend) SetLists(l Lists) {
	f.row.Flags &^= uint16(bpf.FlagHistory)
	if l.History.Count > 0 {
		f.row.Flags |= uint16(bpf.FlagHistory)
	}
	f.lists = bpf.FrontendLists{Members: l.Members, Retained: l.Retained, History: l.History, HistoryDsr: uint32(l.HistoryDSR)}
}

// Lists returns the lists of a frontend. Without a row of lists these are the members of its sets.
func (f *Frontend) Lists() Lists {
	if !f.hasLists() {
		l := Lists{}
		for class := range l.Members {
			l.Members[class] = f.Slots(service.SourceClass(class))
		}
		return l
	}
	return Lists{f.lists.Members, f.lists.Retained, f.lists.History, bpf.DSR(f.lists.HistoryDsr)}
}

// hasLists reports whether the frontend has a row of lists.
func (f *Frontend) hasLists() bool { return f.lists != bpf.FrontendLists{} }

// Slots returns the backend set of a class of clients; an empty range if Verdict is not Balance.
func (f *Frontend) Slots(class service.SourceClass) Range {
	if d := f.row.Decisions[class]; d.Count > 0 {
		return Range(d)
	}
	return Range{}
}

// Verdict returns the verdict of a class of clients.
func (f *Frontend) Verdict(class service.SourceClass) service.Verdict {
	d := f.row.Decisions[class]
	if d.Count > 0 {
		return service.Balance
	}
	return VerdictOf(bpf.Verdict(d.First))
}

// Masquerades reports whether packets of a class of clients get the node's address as source.
func (f *Frontend) Masquerades(class service.SourceClass) bool {
	return f.row.Flags&(uint16(bpf.FlagMasquerade)<<class) != 0
}

// Key returns the address that clients send to.
func (f *Frontend) Key() bpf.FrontendKey { return f.row.Key }

// ForgetKey makes the frontend differ from all others.
func (f *Frontend) ForgetKey() { f.row.Key = bpf.FrontendKey{} }

// Port returns the ID of the service port.
func (f *Frontend) Port() uint32 { return f.row.Service }

// SetSourceSet admits only the sources of the list with an ID.
func (f *Frontend) SetSourceSet(id uint32) { f.row.SourceSet = id }

// SourceSet returns the ID of the list of admitted sources; 0: all are admitted.
func (f *Frontend) SourceSet() uint32 { return f.row.SourceSet }

// AffinitySeconds returns the timeout of session affinity; 0: none.
func (f *Frontend) AffinitySeconds() uint32 { return f.row.AffinitySeconds }

// Kind returns the kind of the frontend.
func (f *Frontend) Kind() service.FrontendKind { return service.FrontendKind(f.row.Kind) }

// DSR returns how packets reach backends on other nodes.
func (f *Frontend) DSR() bpf.DSR { return bpf.DSR(f.row.Dsr) }

// Maglev reports whether the backend sets are Maglev tables.
func (f *Frontend) Maglev() bool { return f.has(uint16(bpf.FlagMaglev)) }

// LoopbackExact reports whether 127.0.0.1 stands for itself only.
func (f *Frontend) LoopbackExact() bool { return f.has(uint16(bpf.FlagLoopbackExact)) }

// OwnAddress reports whether the address is this node's, and sources are restricted.
func (f *Frontend) OwnAddress() bool { return f.has(uint16(bpf.FlagOwnAddress)) }

// Untracked reports whether flows of uncontested slots have no conntrack entries.
func (f *Frontend) Untracked() bool { return f.has(uint16(bpf.FlagUntracked)) }

// SetTracked gives every flow a conntrack entry.
func (f *Frontend) SetTracked() { f.row.Flags &^= uint16(bpf.FlagUntracked) }

// HasHistory reports whether some slots are contested.
func (f *Frontend) HasHistory() bool { return f.has(uint16(bpf.FlagHistory)) }

// SameFlags reports whether two frontends have the same flags.
func (f *Frontend) SameFlags(other *Frontend) bool { return f.row.Flags == other.row.Flags }

func (f *Frontend) has(flag uint16) bool { return f.row.Flags&flag != 0 }
