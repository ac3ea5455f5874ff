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
type Table map[datapath.Tuple]datapath.ConntrackEntry

// Max returns the maximum number of entries.
func (Table) Max() uint32 { return 64 }

// Walk calls f for each entry until f returns false.
func (t Table) Walk(f func(datapath.Tuple, *datapath.ConntrackEntry) bool) error {
	for k, e := range maps.Clone(t) {
		if !f(k, &e) {
			break
		}
	}
	return nil
}

// Get returns an entry, nil if there is none.
func (t Table) Get(k datapath.Tuple) (*datapath.ConntrackEntry, error) {
	if e, ok := t[k]; ok {
		return &e, nil
	}
	return nil, nil
}

// Delete deletes an entry, and reports whether there was one.
func (t Table) Delete(k datapath.Tuple) (bool, error) {
	return t.DeleteIf(k, func(*datapath.ConntrackEntry) bool { return true })
}

// DeleteIf deletes an entry if is returns true for it, and reports whether it did.
func (t Table) DeleteIf(k datapath.Tuple, is func(*datapath.ConntrackEntry) bool) (bool, error) {
	e, existed := t[k]
	if !existed || !is(&e) {
		return false, nil
	}
	delete(t, k)
	return true, nil
}

// Tuple returns the tuple of a packet between two addresses with ports.
func Tuple(protocol uint8, from, to string) datapath.Tuple {
	f, t := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	return datapath.Tuple{
		Source: datapath.AddressFrom(f.Addr()), SourcePort: datapath.NetworkOrder(f.Port()),
		Destination: datapath.AddressFrom(t.Addr()), DestinationPort: datapath.NetworkOrder(t.Port()),
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
	New     = int(datapath.ConntrackNew)
	Both    = int(datapath.ConntrackEstablished)
	Closing = int(datapath.ConntrackClosing)
	Closed  = int(datapath.ConntrackClosed)
	FIN     = 100 // closing, and this side has sent a FIN
)

// Put stores the two entries of a flow to Asked: first the client's, then the backend's.
func (t Table) Put(protocol uint8, client, backend string, states [2]int, lastSeen [2]uint32) {
	request, reply := Tuple(protocol, client, Asked), Tuple(protocol, backend, Seen)
	if states[0] != Lost {
		t[request] = entry(reply.Reverse(), states[0], lastSeen[0], 0)
	}
	if states[1] != Lost {
		t[reply] = entry(request.Reverse(), states[1], lastSeen[1], uint8(datapath.ConntrackReply))
	}
}

func entry(xlate datapath.Tuple, state int, lastSeen uint32, flags uint8) datapath.ConntrackEntry {
	if state == FIN {
		state, flags = Closing, flags|uint8(datapath.ConntrackFIN)
	}
	return datapath.ConntrackEntry{Xlate: xlate, State: uint8(state), LastSeen: lastSeen, Flags: flags}
}
