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
	// Tracks are those of which both sides have been heard, HalfOpen the others.
	Tracks, HalfOpen FlowTable
	room             *ebpf.Map // nil: nobody asks
}

// A FlowTable is a table of records by the packets that they are for.
type FlowTable interface {
	// Max is the number of records that it can hold.
	Max() uint32
	// Walk calls f for each record until f returns false. f may delete records. One
	// that comes or goes meanwhile may be missing.
	Walk(f func(Tuple, *Track) bool) error
	// Get finds a record, nil if there is none.
	Get(Tuple) (*Track, error)
	// Delete removes a record, and says whether there was one.
	Delete(Tuple) (bool, error)
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
		room:     maps[EdgeTCMapTracksRoom],
		Tracks:   kernelFlows{kernelHash[Tuple, Track]{EdgeTCMapTracks, maps[EdgeTCMapTracks]}, maps[EdgeTCMapServiceGone]},
		HalfOpen: halfOpenFlows{maps[EdgeTCMapHalfOpen], maps[EdgeTCMapServiceGone]},
	}
}

// OpenFlows opens the pinned records of a directory, whether an agent is running
// there or not; os.ErrNotExist if there is no edge.
func OpenFlows(bpffs string) (*Flows, error) {
	maps := map[string]*ebpf.Map{}
	for _, name := range []string{EdgeTCMapTracks, EdgeTCMapHalfOpen, EdgeTCMapServiceGone} {
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

type kernelFlows struct {
	kernelHash[Tuple, Track]
	gone *ebpf.Map // where the counts go of records that are deleted
}

func (k kernelFlows) Walk(f func(Tuple, *Track) bool) error {
	const size = 1024 // larger than any hash bucket, which a batch has to hold whole
	keys, values := make([]Tuple, size), make([]Track, size)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := k.m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			if !f(keys[i], &values[i]) {
				return nil
			}
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read table %s: %w", k.name, err)
		}
	}
}

func (k kernelFlows) Get(key Tuple) (*Track, error) {
	var t Track
	err := k.m.Lookup(&key, &t)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read table %s: %w", k.name, err)
	}
	return &t, nil
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

func (k kernelFlows) Delete(key Tuple) (bool, error) {
	var t Track
	err := k.m.LookupAndDelete(&key, &t)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("delete from table %s: %w", k.name, err)
	}
	return true, keepTraffic(k.gone, &t)
}

// Now is the time on the clock of a record's last_seen: whole seconds of CLOCK_MONOTONIC.
func Now() uint32 {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // fails only for clocks that do not exist
	return uint32(now.Sec)
}

// The words of the table that says how full Tracks is (enum track_room in bpf/lib/edge_tables.h).
const (
	roomMade uint32 = iota
	roomEnough
)

// unevenRoom is how many free records each CPU may keep to itself while the kernel displaces
// records for others, twice (LOCAL_FREE_TARGET in the kernel's bpf_lru_list.c).
const unevenRoom = 256

// Made is how many records the programs have stored in Tracks since the table was made.
func (f *Flows) Made() (made uint64, err error) {
	if f.room == nil {
		return 0, nil
	}
	if err := f.room.Lookup(roomMade, &made); err != nil {
		return 0, fmt.Errorf("read table %s: %w", EdgeTCMapTracksRoom, err)
	}
	return made, nil
}

// NoteRoom tells the programs that Tracks had at most so many records when so many had been
// made: until it can be full they need not look so often whether records have been displaced.
func (f *Flows) NoteRoom(made uint64, records int) error {
	if f.room == nil {
		return nil
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	return setRoom(f.room, enoughRoom(made, uint64(records), uint64(f.Tracks.Max()), uint64(cpus)))
}

// enoughRoom is how many records can have been made before one is displaced; 0 if one may have been.
func enoughRoom(made, records, size, cpus uint64) uint64 {
	if used := records + (cpus+1)*unevenRoom; used < size {
		return made + size - used
	}
	return 0
}

func setRoom(room *ebpf.Map, enough uint64) error {
	if err := room.Put(roomEnough, enough); err != nil {
		return fmt.Errorf("write table %s: %w", EdgeTCMapTracksRoom, err)
	}
	return nil
}
