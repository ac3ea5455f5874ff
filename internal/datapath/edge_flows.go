// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Flows are the records of flows at the edge.
type Flows struct {
	// Tracks are those that are assured, HalfOpen the others (bpf/lib/conntrack_table.h).
	Tracks, HalfOpen FlowTable
}

// A FlowTable is a table of records by the packets that they are for.
type FlowTable interface {
	// Max is the number of records that it can hold.
	Max() uint32
	// Walk calls f for each record until f returns false. f may delete records, and must not
	// keep the pointer. One that comes or goes meanwhile may be missing.
	Walk(f func(Tuple, *Track) bool) error
	// Get finds a record, nil if there is none.
	Get(Tuple) (*Track, error)
	// Delete removes a record, and says whether there was one.
	Delete(Tuple) (bool, error)
	// DeleteIf removes a record for which is says so, and says whether it has.
	DeleteIf(key Tuple, is func(*Track) bool) (bool, error)
}

// Flows are those of this datapath.
func (d *Datapath) Flows() *Flows { return FlowsOf(d.maps) }

// HasEdge says whether clients outside of the cluster are served over the tables of
// a bpffs directory.
func HasEdge(bpffs string) bool {
	_, err := os.Stat(TablePath(bpffs, EdgeTCMapTracks))
	return err == nil
}

// FlowsOf are the records in maps, by their names.
func FlowsOf(maps map[string]*ebpf.Map) *Flows {
	return &Flows{
		Tracks:   conntrackTable{maps[EdgeTCMapTracks], maps[EdgeTCMapTableSecret], maps[EdgeTCMapServiceGone], true},
		HalfOpen: conntrackTable{maps[EdgeTCMapHalfOpen], maps[EdgeTCMapTableSecret], maps[EdgeTCMapServiceGone], false},
	}
}

// OpenFlows opens the pinned records of a directory, whether an agent is running
// there or not; os.ErrNotExist if there is no edge.
func OpenFlows(bpffs string) (*Flows, error) {
	maps := map[string]*ebpf.Map{}
	for _, name := range []string{EdgeTCMapTracks, EdgeTCMapHalfOpen, EdgeTCMapTableSecret, EdgeTCMapServiceGone} {
		m, err := ebpf.LoadPinnedMap(TablePath(bpffs, name), nil)
		if errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("no flows are pinned under %s: name the agent's --bpffs; if it is this one, its --edge-mode is off, or no agent has run yet: %w", bpffs, os.ErrNotExist)
		}
		if err != nil {
			return nil, fmt.Errorf("open pinned table %s under %s: %w", name, bpffs, err)
		}
		maps[name] = m
	}
	return FlowsOf(maps), nil
}

// From is the source of a tuple.
func (t EdgeTCTuple) From() netip.AddrPort { return addrPort(t.Source.Bytes, t.SourcePort) }

// To is the destination of a tuple.
func (t EdgeTCTuple) To() netip.AddrPort { return addrPort(t.Destination.Bytes, t.DestinationPort) }

// Reverse is the tuple of what comes back.
func (t EdgeTCTuple) Reverse() Tuple {
	t.Source, t.Destination = t.Destination, t.Source
	t.SourcePort, t.DestinationPort = t.DestinationPort, t.SourcePort
	return t
}

// IsReply says whether the record is for packets of the backend.
func (t *EdgeTCTrack) IsReply() bool { return t.Flags&uint8(TrackReply) != 0 }

// IsLocal says whether the backend is on this node.
func (t *EdgeTCTrack) IsLocal() bool { return t.Flags&uint8(TrackLocal) != 0 }

// IsAlone says whether the flow has no other record: what its backend answers does not
// come by this node (DSR).
func (t *EdgeTCTrack) IsAlone() bool { return DSR(t.Dsr) != DSRNone }

// Connection is the service that a flow's client asks and the backend that it has.
// key is that of the record.
func (t *EdgeTCTrack) Connection(key Tuple) Connection {
	if t.IsReply() {
		return Connection{Protocol: key.Protocol, Service: t.Becomes.From(), Backend: key.From()}
	}
	return Connection{Protocol: key.Protocol, Service: key.To(), Backend: t.Becomes.To()}
}

// Now is the time on the clock of a record's last_seen: whole seconds of CLOCK_MONOTONIC.
func Now() uint32 {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // fails only for clocks that do not exist
	return uint32(now.Sec)
}
