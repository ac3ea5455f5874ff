// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"errors"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
)

// A Table is a table of conntrack entries. Programs may change it at any time.
type Table interface {
	// Max returns the maximum number of entries.
	Max() uint32
	// Walk calls f for each entry until f returns false. f may delete entries, and must not keep the
	// pointer. An entry inserted or deleted during the walk may be missing.
	Walk(f func(Tuple, *Entry) bool) error
	// Get returns an entry, nil if there is none.
	Get(Tuple) (*Entry, error)
	// Delete deletes an entry, and reports whether there was one.
	Delete(Tuple) (bool, error)
	// DeleteIf deletes an entry if is returns true for it, and reports whether it did.
	DeleteIf(key Tuple, is func(*Entry) bool) (bool, error)
}

// kernelTable is a Table in the memory of BPF maps (bpf/conntrack/table.h).
type kernelTable struct {
	*bpf.ConntrackSets
	collected *ebpf.Map // accumulates the counts of deleted entries; nil: they are lost
}

func newKernelTable(maps map[string]*ebpf.Map, name string) *kernelTable {
	return &kernelTable{bpf.NewConntrackSets(maps, name), maps[bpf.EdgeTCMapServiceCollected]}
}

func (t *kernelTable) Walk(f func(Tuple, *Entry) bool) error {
	return t.ConntrackSets.Walk(func(e *bpf.ConntrackSlot) bool { return f(e.Key, &e.Ct) })
}

func (t *kernelTable) Get(key Tuple) (*Entry, error) {
	e, err := t.ConntrackSets.Get(key)
	if e == nil {
		return nil, err
	}
	return &e.Ct, err
}

func (t *kernelTable) Delete(key Tuple) (existed bool, err error) {
	return t.DeleteIf(key, func(*Entry) bool { return true })
}

// DeleteIf reads the entry again, because programs may have given its key to another flow since the caller
// read it. Only a few instructions lie between that read and the change of the tag.
func (t *kernelTable) DeleteIf(key Tuple, is func(*Entry) bool) (deleted bool, err error) {
	e, err := t.Remove(key, func(e *bpf.ConntrackSlot) bool { return is(&e.Ct) })
	if e == nil {
		return false, err
	}
	return true, errors.Join(err, keepCounts(t.collected, &e.Ct))
}
