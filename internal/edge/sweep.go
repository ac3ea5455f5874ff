// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/rtnetlink"
)

// sweepInterval is the time between sweeps; one that needs much of a CPU makes the next ones
// rarer.
const (
	sweepInterval   = 10 * time.Second
	sweepShare      = 100 // sweeps take at most a part in so many of a CPU
	longestInterval = time.Minute
)

// sweeps are what is known of them.
type sweeps struct {
	last    time.Time
	took    time.Duration
	expired uint64 // flows so far
	ended   uint64 // UDP flows of backends that serve no more
	err     error
}

// sweep ends the flows whose time has come, and says when to call it again.
func (e *Edge) sweep() time.Duration {
	// Waiting is not work: a busy machine is no reason to remember flows for longer.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin, busy := time.Now(), threadTime()
	serving, found := e.serving(), newInFlows()
	e.mu.Lock()
	e.elsewhere.begin(serving)
	e.entered.begin(e.asked())
	e.mu.Unlock()
	ended, err := e.sweepFlows(found.note)
	took := time.Since(begin)
	busy = threadTime() - busy
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		backends, devices := e.elsewhere.end(found.backends), e.entered.end(found.devices)
		if backends || devices {
			rtnetlink.Notify(e.changed)
		}
	}
	e.noteSweep(err)
	e.sweeps.last, e.sweeps.took = begin, took
	e.sweeps.expired += ended
	return min(max(sweepInterval, sweepShare*busy), longestInterval)
}

// threadTime is how long a CPU has run the calling thread.
func threadTime() time.Duration {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now) // fails only for clocks that do not exist
	return time.Duration(now.Nano())
}

// sweepFlows ends flows, and has those look on who wait for some to have gone. These see
// what every program has stored that was running before.
func (e *Edge) sweepFlows(note func(datapath.Tuple, *datapath.Track)) (ended uint64, err error) {
	visit, settle := note, func() error { return nil }
	if e.config.Contested != nil {
		if contested, settled := e.config.Contested(); contested != nil {
			visit = func(key datapath.Tuple, t *datapath.Track) { note(key, t); contested(key, t) }
			settle = settled
		}
	}
	flows := e.datapath.Flows()
	err = e.renewDoor(func(admit func(datapath.Tuple, *datapath.Track)) (err error) {
		ended, err = Sweep(flows, e.config.Timeouts, datapath.Now(), func(key datapath.Tuple, t *datapath.Track) {
			admit(key, t)
			visit(key, t)
		})
		return err
	})
	if err == nil {
		err = settle()
	}
	return ended, err
}

// renewDoor makes the door anew while something walks through all flows, after every program
// that is running now. Of the records that an earlier agent's programs make in tables that
// this one does not know, no walk comes by: while there may be such the door stays as it is.
func (e *Edge) renewDoor(walk func(admit func(datapath.Tuple, *datapath.Track)) error) error {
	if !e.everywhere() {
		if err := e.datapath.WaitForReaders(); err != nil {
			return err
		}
		return walk(func(datapath.Tuple, *datapath.Track) {})
	}
	door := e.datapath.Door()
	return door.Renew(func() error {
		if e.config.Admit != nil {
			e.config.Admit()
		}
		return walk(door.AdmitRecord)
	})
}

// everywhere says whether this agent's programs are at all devices.
func (e *Edge) everywhere() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.devices {
		if a.failed != nil {
			return false
		}
	}
	return e.ready
}

func (e *Edge) noteSweep(err error) {
	if err != nil && (e.sweeps.err == nil || e.sweeps.err.Error() != err.Error()) {
		e.config.Log.Error("flows that are over may be remembered longer than they should", "error", err)
	}
	e.sweeps.err = err
}

// Sweep ends the flows whose time has come; now is in seconds of CLOCK_MONOTONIC.
// Of two records the later counts, and both go. Each record is shown to visit, unless
// that is nil.
func Sweep(flows *datapath.Flows, timeouts Timeouts, now uint32, visit func(datapath.Tuple, *datapath.Track)) (ended uint64, err error) {
	for _, table := range []datapath.FlowTable{flows.HalfOpen, flows.Tracks} {
		var failed error
		n, err := end(table, visit, func(key datapath.Tuple, t *datapath.Track) bool {
			if idle(t.LastSeen, now) < timeouts.least(key.Protocol, datapath.TrackState(t.State)) {
				return false
			}
			other, err := otherOf(table, key, t)
			failed = errors.Join(failed, err)
			return err == nil && timeouts.expired(key, t, other, now)
		})
		ended += n
		if err = errors.Join(err, failed); err != nil {
			return ended, err
		}
	}
	return ended, nil
}

// End deletes both records of the flows of which one is over; over is asked again right before. It
// counts flows.
func End(table datapath.FlowTable, over func(datapath.Tuple, *datapath.Track) bool) (ended uint64, err error) {
	return end(table, nil, over)
}

// end is End, and shows each record to visit, unless that is nil.
func end(table datapath.FlowTable, visit func(datapath.Tuple, *datapath.Track), over func(datapath.Tuple, *datapath.Track) bool) (ended uint64, err error) {
	var failed error
	err = table.Walk(func(key datapath.Tuple, t *datapath.Track) bool {
		if visit != nil {
			visit(key, t)
		}
		if over(key, t) {
			failed = deleteFlow(table, key, t, over, &ended)
		}
		return failed == nil
	})
	return ended, errors.Join(err, failed)
}

// otherOf is the other record of a flow; nil if it is lost, or another flow has its port by now, or
// the flow has one alone.
func otherOf(table datapath.FlowTable, key datapath.Tuple, t *datapath.Track) (*datapath.Track, error) {
	if t.IsAlone() {
		return nil, nil
	}
	other, err := table.Get(t.Becomes.Reverse())
	if err != nil || other == nil || other.Becomes.Reverse() != key {
		return nil, err
	}
	return other, nil
}

// deleteFlow counts a flow once, though a walk may come by both of its records. Programs go on: by now
// the key, or the port, may be another flow's, or the flow may go on.
func deleteFlow(table datapath.FlowTable, key datapath.Tuple, t *datapath.Track, over func(datapath.Tuple, *datapath.Track) bool, ended *uint64) error {
	was := *t
	deleted, err := table.DeleteIf(key, func(now *datapath.Track) bool { return now.Becomes == was.Becomes && over(key, now) })
	if err != nil || !deleted {
		return err
	}
	*ended++
	if was.IsAlone() {
		return nil
	}
	_, err = table.DeleteIf(was.Becomes.Reverse(), func(other *datapath.Track) bool { return other.Becomes.Reverse() == key })
	return err
}

// Changed has the UDP flows ended whose backend no longer serves (R29). TCP
// connections go on (R30).
func (e *Edge) Changed(udp bool) {
	if e != nil && udp {
		rtnetlink.Notify(e.left)
	}
}

func (e *Edge) endLeft() {
	ended, err := EndLeft(e.datapath.Flows(), e.config.Serves, e.datapath.WaitForReaders)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.noteSweep(err)
	e.sweeps.ended += ended
}

// EndLeft ends the UDP flows whose backend does not serve their service. wait
// returns when the programs have ended that may have chosen such a backend yet,
// or be moving a flow from one table to the other.
func EndLeft(flows *datapath.Flows, serves func(datapath.Connection) bool, wait func() error) (ended uint64, err error) {
	for _, table := range []datapath.FlowTable{flows.HalfOpen, flows.Tracks} {
		if err := wait(); err != nil {
			return ended, err
		}
		n, err := End(table, func(key datapath.Tuple, t *datapath.Track) bool {
			return key.Protocol == unix.IPPROTO_UDP && !serves(t.Connection(key))
		})
		ended += n
		if err != nil {
			return ended, err
		}
	}
	return ended, nil
}
