// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/wakeup"
)

// The time between GC passes: it grows with the CPU time of a pass.
const (
	gcInterval    = 10 * time.Second
	gcShare       = 100 // passes take at most 1/gcShare of one CPU's time
	maxGCInterval = time.Minute
	wantedDelay   = time.Second // until a pass that a subscriber wants (Config.Wanted)
)

// A Subscriber takes part in each GC pass: it sees all conntrack entries in one walk. All calls come from
// one goroutine.
type Subscriber interface {
	// Begin is called before the walk, and may wait for a grace period. All programs that run at the call have
	// ended before the first Entry.
	Begin()
	// Entry is called with each entry, including those about to be deleted. An entry inserted after
	// Begin may be missing. Entry must not keep the pointer.
	Entry(Tuple, *Entry)
	// End is called after the last entry. It is not called if the walk fails: the next call is Begin.
	End() error
}

// Config configures a Collector.
type Config struct {
	Timeouts Timeouts
	// Serves reports whether a backend serves a service at present.
	Serves func(bpf.Connection) bool
	// Counters reads the edge's counters of packets by reason (bpf.ReadEdgeCounters).
	Counters func() (map[string]uint64, error)
	// Reconciled is told how long a search for stale UDP flows took, and what it deleted; nil: nobody asks.
	Reconciled func(time.Duration, Deleted)
	// Wanted requests a pass, for subscribers; nil: nobody does.
	Wanted <-chan struct{}
	Log    *slog.Logger
}

// A Collector deletes the conntrack entries that have expired, and those of UDP flows whose backend no
// longer serves. All methods may be called from any goroutine.
type Collector struct {
	config      Config
	tables      *Tables
	wait        func() error // bpf.Tables.WaitForReaders
	subscribers []Subscriber

	udpRemoved wakeup.Signal // a backend of a UDP Service
	started    wakeup.Signal

	mu          sync.Mutex
	passes      Passes           // without limits
	stale       uint64           // UDP flows whose backend no longer serves, since the agent started
	withoutPort condition.Growth // packets of new flows
	// The errors of the last pass, and of the last search for stale flows.
	passErr, staleErr error
}

// NewCollector returns a Collector. wait returns when all programs have ended that run at the call. Begin
// and End of subscribers are called in the order of the arguments.
func NewCollector(tables *Tables, wait func() error, config Config, subscribers ...Subscriber) *Collector {
	return &Collector{
		config: config, tables: tables, wait: wait, subscribers: subscribers,
		udpRemoved: wakeup.NewSignal(), started: wakeup.NewSignal(),
	}
}

// Start requests a GC pass as soon as possible: the prefilter stays disabled until the first one.
func (c *Collector) Start() {
	c.started.Send()
}

// BackendsChanged requests the deletion of UDP flows whose backend no longer serves (R29), if udp is true.
// TCP connections continue (R30).
func (c *Collector) BackendsChanged(udp bool) {
	if udp {
		c.udpRemoved.Send()
	}
}

// Run collects garbage until ctx ends.
func (c *Collector) Run(ctx context.Context) error {
	c.countPortExhaustion()
	due := time.Now().Add(gcInterval)
	timer := time.NewTimer(gcInterval)
	defer timer.Stop()
	next := func(after time.Duration) {
		due = time.Now().Add(after)
		timer.Reset(after)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.udpRemoved:
			c.deleteStaleUDP()
		case <-c.started:
			next(c.Collect())
		case <-c.config.Wanted:
			if time.Until(due) > wantedDelay {
				next(wantedDelay)
			}
		case <-timer.C:
			next(c.Collect())
			c.retryStaleUDP()
			c.countPortExhaustion()
		}
	}
}

// Collect makes one GC pass, and returns the time until the next. Only one call may run at a time.
func (c *Collector) Collect() time.Duration {
	// The interval depends on CPU time, not on elapsed time: on a busy machine a pass waits for the
	// CPU, and that should not delay the expiry of flows.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin, busy := time.Now(), threadTime()
	expired, err := c.pass()
	took := time.Since(begin)
	busy = threadTime() - busy
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noteError(&c.passErr, err)
	c.passes.Last, c.passes.Took = begin, took
	c.passes.Expired += expired
	return min(max(gcInterval, gcShare*busy), maxGCInterval)
}

// pass walks all entries once, with the subscribers.
func (c *Collector) pass() (expired uint64, err error) {
	for _, s := range c.subscribers {
		s.Begin()
	}
	if err := c.wait(); err != nil {
		return 0, err
	}
	census := &censusTaker{}
	expired, err = CollectGarbage(c.tables, c.config.Timeouts, bpf.Now(), func(assured bool, key Tuple, e *Entry) {
		census.note(assured, key, e)
		for _, s := range c.subscribers {
			s.Entry(key, e)
		}
	})
	if err != nil {
		return expired, err
	}
	c.mu.Lock()
	c.passes.Census = census.result()
	c.mu.Unlock()
	for _, s := range c.subscribers {
		err = errors.Join(err, s.End())
	}
	return expired, err
}

// threadTime returns the CPU time of the calling thread.
func threadTime() time.Duration {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now) // fails only for clocks that do not exist
	return time.Duration(now.Nano())
}

// noteError keeps the error of the last pass of a kind, and logs it if it is new. The caller holds the lock.
func (c *Collector) noteError(last *error, err error) {
	if err != nil && (*last == nil || (*last).Error() != err.Error()) {
		condition.ConntrackGCFailed.Log(c.config.Log, "conntrack garbage collection failed: expired flows may be kept for longer", "error", err)
	}
	*last = err
}

// retryStaleUDP deletes stale UDP flows again if that has failed.
func (c *Collector) retryStaleUDP() {
	c.mu.Lock()
	failed := c.staleErr != nil
	c.mu.Unlock()
	if failed {
		c.deleteStaleUDP()
	}
}

func (c *Collector) deleteStaleUDP() {
	begin := time.Now()
	stale, err := DeleteStaleUDP(c.tables, c.config.Serves, c.wait)
	if c.config.Reconciled != nil {
		c.config.Reconciled(time.Since(begin), stale)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noteError(&c.staleErr, err)
	c.stale += stale.Total()
}
