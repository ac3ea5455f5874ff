// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/util/kernelclock"
)

// EdgeEvent is an event of a packet: a new flow, a refusal or a drop.
type EdgeEvent = EdgeTCEdgeEvent

// Events are the edge's events. They can have one reader at a time.
type Events struct{ ring, watched, counts *ebpf.Map }

// NewEvents returns the events of a datapath, and undoes the watch of an agent that was killed during it; nil if there
// is no edge.
func NewEvents(d *Datapath) (*Events, error) {
	e := &Events{d.Map(EdgeTCMapEdgeEvents), d.Map(EdgeTCMapEdgeWatched), d.Map(EdgeTCMapEdgeCounts)}
	if e.ring == nil {
		return nil, nil
	}
	return e, e.watch(0)
}

// OpenEvents opens the pinned events of a directory without a running agent, and locks out other readers
// until the returned function is called.
func OpenEvents(bpffs string) (*Events, func(), error) {
	dir, err := os.Open(filepath.Dir(TablePath(bpffs, EdgeTCMapEdgeEvents)))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, fmt.Errorf("nothing is pinned under %s: set --pins to the agent's; if it is, no agent has run yet", bpffs)
	}
	if err != nil {
		return nil, nil, err
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		dir.Close()
		return nil, nil, fmt.Errorf("another `beeline monitor` reads the events under %s: without an agent only one can run", bpffs)
	}
	e, opened := &Events{}, []*ebpf.Map{}
	closeAll := func() {
		for _, m := range opened {
			m.Close()
		}
		dir.Close()
	}
	for name, to := range map[string]**ebpf.Map{EdgeTCMapEdgeEvents: &e.ring, EdgeTCMapEdgeWatched: &e.watched, EdgeTCMapEdgeCounts: &e.counts} {
		if *to, err = ebpf.LoadPinnedMap(TablePath(bpffs, name), nil); err != nil {
			closeAll()
			if errors.Is(err, os.ErrNotExist) {
				err = fmt.Errorf("no events are pinned under %s: the agent's --edge-mode is off; set --pins to that of an agent with an edge", bpffs)
				return nil, nil, err
			}
			return nil, nil, fmt.Errorf("open pinned table %s under %s: %w", name, bpffs, err)
		}
		opened = append(opened, *to)
	}
	return e, closeAll, nil
}

func (e *Events) watch(on uint32) error {
	if err := e.watched.Put(uint32(0), on); err != nil {
		return fmt.Errorf("write table %s: %w", EdgeTCMapEdgeWatched, err)
	}
	return nil
}

// lostInterval is how often Read checks for lost events.
const lostInterval = 200 * time.Millisecond

// Read makes the programs emit events, until ctx ends. It calls ready when they do, event for each event,
// and lost with the number of events for which there was no room.
func (e *Events) Read(ctx context.Context, ready func(), event func(*EdgeEvent), lost func(uint64)) (err error) {
	reader, err := ringbuf.NewReader(e.ring)
	if err != nil {
		return fmt.Errorf("read %s: %w", EdgeTCMapEdgeEvents, err)
	}
	defer reader.Close()
	stop := context.AfterFunc(ctx, func() { reader.Close() })
	defer stop()
	missed, err := e.lost()
	if err != nil {
		return err
	}
	begin := kernelclock.Now()
	if err := e.watch(1); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.watch(0)) }()
	ready()
	var record ringbuf.Record
	for {
		reader.SetDeadline(time.Now().Add(lostInterval))
		switch err := reader.ReadInto(&record); {
		case errors.Is(err, ringbuf.ErrClosed):
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			now, err := e.lost()
			if err != nil {
				return err
			}
			if now > missed {
				lost(now - missed)
			}
			missed = now
		case err != nil:
			return fmt.Errorf("read %s: %w", EdgeTCMapEdgeEvents, err)
		default:
			// Older events were written for another reader.
			if ev := eventOf(record.RawSample); ev != nil && ev.Time >= begin {
				event(ev)
			}
		}
	}
}

func eventOf(sample []byte) *EdgeEvent {
	if len(sample) < int(unsafe.Sizeof(EdgeEvent{})) {
		return nil
	}
	e := *(*EdgeEvent)(unsafe.Pointer(unsafe.SliceData(sample)))
	return &e
}

// lost returns how many events have been lost so far.
func (e *Events) lost() (n uint64, err error) {
	perCPU, err := CountersIn[EdgeTCEdgeCounters](e.counts)
	if err != nil {
		return 0, fmt.Errorf("read table %s: %w", EdgeTCMapEdgeCounts, err)
	}
	for _, c := range perCPU {
		n += c.Lost
	}
	return n, nil
}

// Age returns how long ago an event was.
func Age(e *EdgeEvent) time.Duration { return time.Duration(kernelclock.Now() - e.Time) }
