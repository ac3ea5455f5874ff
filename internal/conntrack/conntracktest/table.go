// SPDX-License-Identifier: Apache-2.0

// Package conntracktest has conntrack tables in memory, for tests.
package conntracktest

import (
	"maps"
	"net/netip"

	"beeline.io/beeline/internal/bpf"
)

// Table is a table of conntrack entries (conntrack.Table). A walk sees the entries that exist when it
// begins.
type Table map[bpf.Tuple]bpf.ConntrackEntry

// Max returns the maximum number of entries.
func (Table) Max() uint32 { return 64 }

// Walk calls f for each entry until f returns false.
func (t Table) Walk(f func(bpf.Tuple, *bpf.ConntrackEntry) bool) error {
	for k, e := range maps.Clone(t) {
		if !f(k, &e) {
			break
		}
	}
	return nil
}

// Get returns an entry, nil if there is none.
func (t Table) Get(k bpf.Tuple) (*bpf.ConntrackEntry, error) {
	if e, ok := t[k]; ok {
		return &e, nil
	}
	return nil, nil
}

// Delete deletes an entry, and reports whether there was one.
func (t Table) Delete(k bpf.Tuple) (bool, error) {
	return t.DeleteIf(k, func(*bpf.ConntrackEntry) bool { return true })
}

// DeleteIf deletes an entry if is returns true for it, and reports whether it did.
func (t Table) DeleteIf(k bpf.Tuple, is func(*bpf.ConntrackEntry) bool) (bool, error) {
	e, existed := t[k]
	if !existed || !is(&e) {
		return false, nil
	}
	delete(t, k)
	return true, nil
}

// Tuple returns the tuple of a packet between two addresses with ports.
func Tuple(protocol uint8, from, to string) bpf.Tuple {
	f, t := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	return bpf.Tuple{
		Source: bpf.AddressFrom(f.Addr()), SourcePort: bpf.NetworkOrder(f.Port()),
		Destination: bpf.AddressFrom(t.Addr()), DestinationPort: bpf.NetworkOrder(t.Port()),
		Protocol: protocol,
	}
}

// The service address of the flows of Put, and the address and port of the node that their backends see.
const (
	Asked = "192.0.2.1:30080"
	Seen  = "192.0.2.1:1024"
)

// States of an entry of Put.
const (
	Lost    = -1 // there is no entry
	New     = int(bpf.ConntrackNew)
	Both    = int(bpf.ConntrackEstablished)
	Closing = int(bpf.ConntrackClosing)
	Closed  = int(bpf.ConntrackClosed)
	FIN     = 100 // closing, and this side has sent a FIN
)

// Put stores the two entries of a flow to Asked: first the client's, then the backend's.
func (t Table) Put(protocol uint8, client, backend string, states [2]int, lastSeen [2]uint32) {
	request, reply := Tuple(protocol, client, Asked), Tuple(protocol, backend, Seen)
	if states[0] != Lost {
		t[request] = entry(reply.Reverse(), states[0], lastSeen[0], 0)
	}
	if states[1] != Lost {
		t[reply] = entry(request.Reverse(), states[1], lastSeen[1], uint8(bpf.ConntrackReply))
	}
}

func entry(xlate bpf.Tuple, state int, lastSeen uint32, flags uint8) bpf.ConntrackEntry {
	if state == FIN {
		state, flags = Closing, flags|uint8(bpf.ConntrackFIN)
	}
	return bpf.ConntrackEntry{Xlate: xlate, State: uint8(state), LastSeen: lastSeen, Flags: flags}
}
