// SPDX-License-Identifier: Apache-2.0

// Package conntrack is the agent's side of connection tracking at the edge: it reads and lists conntrack
// entries, defines their timeouts, deletes expired entries, and chooses the range of SNAT ports.
//
// The programs insert entries and apply the timeouts themselves (bpf/conntrack). Garbage collection frees
// the entries' slots and the resources that only they use. Packages that need all entries subscribe to its
// walk (Subscriber).
package conntrack

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
)

type (
	// Tuple is the key of an entry: the source and destination of its packets.
	Tuple = bpf.Tuple
	// Entry is the translation of one direction of a flow. A flow has two.
	Entry = bpf.ConntrackEntry
	// State is the state of an Entry.
	State = bpf.ConntrackState
)

// Tables are the conntrack tables of the edge.
type Tables struct {
	// Assured has the entries of assured flows: TCP with a complete handshake, and UDP streams.
	Assured Table
	// Unreplied has the entries of all other flows, so that a flood of them evicts no assured flow.
	Unreplied Table
}

// All returns the tables in the order in which a flow moves from one to the other. A walk in this order
// sees a flow that moves meanwhile at least once.
func (t *Tables) All() []Table { return []Table{t.Unreplied, t.Assured} }

// Walk calls f for each entry of both tables.
func (t *Tables) Walk(f func(Tuple, *Entry)) error {
	var failed error
	for _, table := range t.All() {
		failed = errors.Join(failed, table.Walk(func(key Tuple, e *Entry) bool { f(key, e); return true }))
	}
	return failed
}

// TablesOf returns the conntrack tables in maps by their names.
func TablesOf(maps map[string]*ebpf.Map) *Tables {
	return &Tables{
		Assured:   newKernelTable(maps, bpf.EdgeTCMapConntrack),
		Unreplied: newKernelTable(maps, bpf.EdgeTCMapUnreplied),
	}
}

// notPinned is an os.ErrNotExist that says what to do.
type notPinned struct{ bpffs string }

func (e notPinned) Error() string {
	return fmt.Sprintf("no conntrack tables are pinned under %s: set --pins to the agent's; if it is, the agent's --edge-mode is off, or no agent has run yet", e.bpffs)
}

func (notPinned) Is(target error) bool { return target == os.ErrNotExist }

// Open opens the pinned conntrack tables of a bpffs directory, whether an agent runs there or not.
//
// Errors: os.ErrNotExist if there is no edge.
func Open(bpffs string) (*Tables, error) {
	maps, err := bpf.OpenPinned(bpffs, append(bpf.ConntrackTableNames(), bpf.EdgeTCMapServiceCollected)...)
	if errors.Is(err, os.ErrNotExist) {
		return nil, notPinned{bpffs}
	}
	if err != nil {
		return nil, err
	}
	return TablesOf(maps), nil
}
