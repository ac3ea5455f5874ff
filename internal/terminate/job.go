// SPDX-License-Identifier: Apache-2.0

// Package terminate ends sockets whose backend serves no more, in every network
// namespace of the node: connected UDP sockets at once (R29), TCP connections
// never (R30), or after a drain time if one is set.
package terminate

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/netns"
	"beeline.io/beeline/internal/service"
)

const (
	// followUp is when the tables are surely no more what a connect() saw that
	// was under way when they changed: the hook had chosen, and the kernel had
	// not finished connecting.
	followUp = time.Second
	// restFactor: after a sweep that took d there is none for restFactor*d, so
	// that sweeps take at most a fifth of one CPU.
	restFactor = 4
)

// Config says what is to be ended and how.
type Config struct {
	Method Method
	// TCPDrain is how long a TCP connection may outlive its backend; 0: for ever.
	TCPDrain time.Duration
	// Serves says whether a backend serves a service at present.
	Serves func(datapath.Connection) bool
	Log    *slog.Logger
}

// Job sweeps when it is told to. Its methods may be called from any goroutine.
type Job struct {
	method     Method
	finder     finder // nil if method is Off
	end        func(protocol uint8, stale []datapath.StaleSocket) (ended int, err error)
	namespaces func() iter.Seq2[*netns.Namespace, error]
	log        *slog.Logger
	wake       chan struct{} // one note is enough

	mu        sync.Mutex
	sweeping  bool
	udp, tcp  schedule
	drain     drain
	notBefore time.Time // the rest after the last sweep
	status    Status
}

// New loads the sweep over a datapath's tables. If the kernel cannot, the job
// does nothing, and its status says why.
func New(d *datapath.Datapath, config Config) *Job {
	open := func(end bool) (finder, error) {
		s, err := d.OpenSweep(end)
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	method, finder, why, err := choose(config.Method, datapath.HaveSockDestroy(), open)
	if err != nil {
		config.Log.Error("sockets of backends that are gone will not be ended", "error", err)
	}
	if method != Off && !netns.HostPID() {
		why += "; the agent sees only the processes of its own PID namespace, and not the sockets of pods"
		config.Log.Error("not all sockets of backends that are gone will be found: run the agent in the host's PID namespace (hostPID)")
	}
	return newJob(config, method, finder, why, err)
}

func newJob(config Config, method Method, finder finder, why string, err error) *Job {
	j := &Job{
		method:     method,
		finder:     finder,
		end:        endByNetlink,
		namespaces: netns.All,
		log:        config.Log,
		wake:       make(chan struct{}, 1),
		drain:      drain{timeout: config.TCPDrain, gone: map[datapath.Connection]gone{}, serves: config.Serves},
	}
	j.status = Status{Method: method, Why: why, TCPDrainSeconds: config.TCPDrain.Seconds()}
	if err != nil {
		j.status.LastError = err.Error()
	}
	return j
}

// Close gives the sweep back.
func (j *Job) Close() {
	if c, ok := j.finder.(interface{ Close() }); ok {
		c.Close()
	}
}

// Changed says that the tables have changed. udp and tcp say whether backends
// of that protocol have left some service: then there is a sweep, at once or
// after the rest, and another for those who were connecting meanwhile.
func (j *Job) Changed(udp, tcp bool) {
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
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// Run sweeps until ctx ends.
func (j *Job) Run(ctx context.Context) error {
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
			j.sweep(ctx)
		}
	}
}

// next is when the next sweep begins; zero: none is wanted.
func (j *Job) next() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	at := earlier(j.udp.next(), j.tcp.next())
	if !at.IsZero() && at.Before(j.notBefore) {
		at = j.notBefore
	}
	return at
}

// take takes the protocol that has been due for longest off the list.
func (j *Job) take(now time.Time) (protocol uint8) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sweeping = true
	udp := j.udp.next()
	if !udp.IsZero() && earlier(udp, j.tcp.next()) == udp {
		j.udp.take(now)
		return unix.IPPROTO_UDP
	}
	j.tcp.take(now)
	return unix.IPPROTO_TCP
}

// sweep does what is due.
func (j *Job) sweep(ctx context.Context) {
	begin := time.Now()
	s := &sweep{job: j, now: begin, protocol: j.take(begin), left: map[datapath.Connection]bool{}}
	s.run(ctx)
	took := time.Since(begin)
	err := errors.Join(s.errs...)
	if s.ended > 0 {
		j.log.Info("ended sockets whose backend serves no more",
			"protocol", service.Protocol(s.protocol), "sockets", s.ended, "took", took)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sweeping = false
	j.notBefore = begin.Add((1 + restFactor) * took)
	j.status.note(s, took)
	due := &j.udp
	if s.protocol == unix.IPPROTO_TCP {
		due = &j.tcp
		due.drained = j.drain.next(begin)
	}
	due.ended(err)
	if err != nil {
		j.log.Error("could not look after all sockets; trying again",
			"protocol", service.Protocol(s.protocol), "error", err, "retry", due.retry)
	}
}
