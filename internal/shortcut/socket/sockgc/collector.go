// SPDX-License-Identifier: Apache-2.0

// Package sockgc terminates sockets of removed backends in every network namespace of the node: connected UDP
// sockets at once (R29), TCP connections never (R30) or after a drain timeout.
package sockgc

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/node/netns"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/wakeup"
)

const (
	// followUp is the delay of a second pass after a change. It finds sockets whose connect() was in
	// progress during the change: the hook had chosen a backend, and the kernel had not finished
	// connecting.
	followUp = time.Second
	// restFactor limits GC passes to a fifth of one CPU: after a pass of duration d none runs for
	// restFactor*d.
	restFactor = 4
)

// Config selects which sockets to terminate, and how.
type Config struct {
	Method Method
	// TCPDrain is how long a TCP connection may outlive its backend; 0 means forever.
	TCPDrain time.Duration
	// Serves reports whether a backend currently serves a service.
	Serves func(bpf.Connection) bool
	Log    *slog.Logger
}

// Collector runs GC passes on request. Its methods may be called from any goroutine.
type Collector struct {
	method     Method
	finder     finder // nil if method is Off
	end        func(protocol uint8, stale []bpf.StaleSocket) (ended int, err error)
	namespaces func() iter.Seq2[*netns.Namespace, error]
	log        *slog.Logger
	wake       wakeup.Signal

	mu        sync.Mutex
	running   bool
	udp, tcp  schedule
	drain     drain
	notBefore time.Time // end of the rest after the last GC pass
	status    Status
}

// New loads the socket GC programs for a datapath's tables. If the kernel does not support them, the collector
// does nothing, and its status contains the reason.
func New(d *bpf.Datapath, config Config) *Collector {
	method, finder, why, err := choose(config.Method, bpf.HaveSockDestroy(), func(end bool) (*Iterators, error) { return OpenIterators(d, end) })
	if err != nil {
		condition.SocketsNotEnded.Log(config.Log, "sockets of removed backends will not be ended", "error", err)
	}
	if method != Off && !netns.HostPID() {
		why += "; the agent sees only the processes of its own PID namespace, and not the sockets of pods"
		condition.SocketsNotEnded.Log(config.Log, "not all sockets of removed backends will be found: run the agent in the host's PID namespace (hostPID)")
	}
	return newCollector(config, method, finder, why, err)
}

func newCollector(config Config, method Method, finder finder, why string, err error) *Collector {
	j := &Collector{
		method:     method,
		finder:     finder,
		end:        destroyByNetlink,
		namespaces: netns.All,
		log:        config.Log,
		wake:       wakeup.NewSignal(),
		udp:        newSchedule(),
		tcp:        newSchedule(),
		drain:      drain{timeout: config.TCPDrain, removed: map[bpf.Connection]removedBackend{}, serves: config.Serves},
	}
	j.status = Status{Method: string(method), Why: why, TCPDrainSeconds: config.TCPDrain.Seconds()}
	if err != nil {
		j.status.LastError = err.Error()
	}
	return j
}

// Close unloads the socket GC programs.
func (j *Collector) Close() {
	if c, ok := j.finder.(interface{ Close() }); ok {
		c.Close()
	}
}

// Changed reports a change of the tables. udp and tcp mean that backends of that protocol were removed from a
// service. A GC pass then runs at once or after the rest, and another one later for sockets that were
// connecting meanwhile.
func (j *Collector) Changed(udp, tcp bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.method == Off {
		return
	}
	now := time.Now()
	j.drain.returned()
	if udp {
		j.udp.changed(now)
	}
	if tcp && j.drain.timeout > 0 {
		j.tcp.changed(now)
	}
	j.wake.Send()
}

// Run runs GC passes until ctx ends.
func (j *Collector) Run(ctx context.Context) error {
	for {
		var timer <-chan time.Time
		if at := j.next(); !at.IsZero() {
			timer = time.After(time.Until(at))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-j.wake:
		case <-timer:
			j.runPass(ctx)
		}
	}
}

// next returns when the next GC pass is due; the zero time if none is.
func (j *Collector) next() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	at := earlier(j.udp.next(), j.tcp.next())
	if !at.IsZero() && at.Before(j.notBefore) {
		at = j.notBefore
	}
	return at
}

// take removes and returns the protocol that has been due for longest.
func (j *Collector) take(now time.Time) (protocol uint8) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.running = true
	udp := j.udp.next()
	if !udp.IsZero() && earlier(udp, j.tcp.next()) == udp {
		j.udp.take(now)
		return unix.IPPROTO_UDP
	}
	j.tcp.take(now)
	return unix.IPPROTO_TCP
}

// runPass runs the GC pass that is due.
func (j *Collector) runPass(ctx context.Context) {
	begin := time.Now()
	s := &pass{collector: j, now: begin, protocol: j.take(begin), left: map[bpf.Connection]bool{}}
	s.run(ctx)
	took := time.Since(begin)
	err := errors.Join(s.errs...)
	if s.ended > 0 {
		j.log.Info("ended sockets whose backend is out of service",
			"protocol", service.Protocol(s.protocol), "sockets", s.ended, "took", took)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.running = false
	j.notBefore = begin.Add((1 + restFactor) * took)
	record(&j.status, s, took)
	due := &j.udp
	if s.protocol == unix.IPPROTO_TCP {
		due = &j.tcp
		due.drained = j.drain.next(begin)
	}
	due.ended(err)
	if err != nil {
		j.log.Error("a socket GC pass failed; retrying",
			"protocol", service.Protocol(s.protocol), "error", err, "retry", due.retry.Delay())
	}
}
