// SPDX-License-Identifier: Apache-2.0

// Package healthcheck probes addresses periodically, and reports changes of their state. Package service
// decides what to probe, and what follows from the result.
package healthcheck

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/util/wakeup"
)

// Options of a Prober.
type Options struct {
	// Dial makes the connections; see Direct.
	Dial Dialer
	// Through returns the Dialer for targets with a service.Via.
	Through func(service.Via) Dialer
	// MaxConcurrent bounds the number of concurrent probes; 0 means 1000. Others wait.
	MaxConcurrent int
}

// Counters count since the prober started.
type Counters struct {
	Probes   uint64 `json:"probes"`
	Failures uint64 `json:"failures"`
	// Changes counts targets that went down or came back up.
	Changes uint64 `json:"changes"`
	// Late counts probes that started more than an interval late, because too many others were in progress.
	Late uint64 `json:"late"`
}

// Prober probes targets. Its methods may be called at any time, from any goroutine.
type Prober struct {
	options Options
	wake    wakeup.Signal // the schedule has changed
	slots   chan struct{}

	mu       sync.Mutex
	targets  map[service.Target]*target
	schedule schedule
	changes  []Change
	changed  wakeup.Signal // changes is not empty
	counters Counters
}

// New returns a Prober without targets.
func New(options Options) *Prober {
	if options.MaxConcurrent == 0 {
		options.MaxConcurrent = 1000
	}
	return &Prober{
		options: options, targets: map[service.Target]*target{},
		wake: wakeup.NewSignal(), changed: wakeup.NewSignal(), slots: make(chan struct{}, options.MaxConcurrent),
	}
}

// initialSpread is the time between the first probes of new targets: a thousand take a second.
const initialSpread = time.Millisecond

// SetTargets replaces the targets. It calls start for each new one. Removed targets are no longer
// probed or reported.
func (p *Prober) SetTargets(wanted []service.Target, start func(service.Target) Start) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	keep := make(map[service.Target]struct{}, len(wanted))
	var added []service.Target
	for _, w := range wanted {
		if _, twice := keep[w]; !twice && p.targets[w] == nil {
			added = append(added, w)
		}
		keep[w] = struct{}{}
	}
	for w, t := range p.targets {
		if _, kept := keep[w]; !kept {
			delete(p.targets, w)
			t.gone = true
			p.schedule.remove(t)
		}
	}
	for _, w := range added {
		within := min(time.Duration(len(added))*initialSpread, w.Probe.Interval)
		t := &target{Target: w, state: State{Up: true, Since: now}, first: true, due: now.Add(rand.N(within)), at: -1}
		switch start(w) {
		case Served:
			t.first = false
		case Unserved:
			t.state.Up = false
		}
		p.targets[w] = t
		p.schedule.add(t)
	}
	p.wake.Send()
}

// State returns the state of a target, and false if it is not probed.
func (p *Prober) State(of service.Target) (State, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.targets[of]; t != nil {
		return t.state, true
	}
	return State{}, false
}

// States returns the states of all targets.
func (p *Prober) States() map[service.Target]State {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[service.Target]State, len(p.targets))
	for w, t := range p.targets {
		all[w] = t.state
	}
	return all
}

// Counters returns the counters.
func (p *Prober) Counters() Counters {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counters
}

// batchDelay is how long a change waits for others, so that targets that fail together are reported
// together.
const batchDelay = 20 * time.Millisecond

// Run probes until ctx ends, and sends changes in batches that contain each target at most once. It returns
// when no probe is in progress.
func (p *Prober) Run(ctx context.Context, changes chan<- []Change) error {
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { p.sendChanges(ctx, changes) })
	for {
		t, wait := p.next(time.Now())
		if t != nil {
			select {
			case <-ctx.Done():
				return nil
			case p.slots <- struct{}{}:
			}
			p.began(t)
			group.Go(func() {
				defer func() { <-p.slots }()
				p.probe(ctx, t)
			})
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-p.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// next removes the first target from the schedule if it is due, or returns how long until it is.
func (p *Prober) next(now time.Time) (*target, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.schedule.first()
	switch {
	case t == nil:
		return nil, time.Hour
	case t.due.After(now):
		return nil, t.due.Sub(now)
	}
	p.schedule.remove(t)
	return t, 0
}

func (p *Prober) began(t *target) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(t.due) > t.Probe.Interval {
		p.counters.Late++
	}
	t.due = now
}

// jitter changes each interval by up to a tenth, so that targets that started together drift apart.
func jitter(interval time.Duration) time.Duration {
	tenth := interval / 10
	return interval - tenth + rand.N(2*tenth+1)
}

// askOnce probes a target through its path. If the check uses another port than the serving one, the probe uses
// plain routing, because the frontend does not forward that port. The check then succeeds only if the serving
// port also answers through the path of clients' packets.
func (p *Prober) askOnce(ctx context.Context, t service.Target) (why string) {
	if t.Via == (service.Via{}) {
		return Probe(ctx, p.options.Dial, t)
	}
	through := p.options.Through(t.Via)
	if t.Via.Backend == t.Addr {
		why = Probe(ctx, through, t)
	} else {
		if why = Reach(ctx, through, t); why == "" {
			return Probe(ctx, p.options.Dial, t)
		}
	}
	if why != "" {
		why += ", " + t.Via.String()
	}
	return why
}

// probe probes a target once and records the result.
func (p *Prober) probe(ctx context.Context, t *target) {
	limit, cancel := context.WithTimeout(ctx, t.Probe.Timeout)
	defer cancel()
	why := p.askOnce(limit, t.Target)
	if ctx.Err() != nil {
		return // shutdown is no failure of the target
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.gone {
		return
	}
	p.counters.Probes++
	if why != "" {
		p.counters.Failures++
	}
	if t.note(why, time.Now()) {
		p.counters.Changes++
		p.changes = append(p.changes, Change{t.Target, t.state})
		p.changed.Send()
	}
	t.due = t.due.Add(jitter(t.Probe.Interval))
	p.schedule.add(t)
	p.wake.Send()
}

// sendChanges sends changes in batches until ctx ends.
func (p *Prober) sendChanges(ctx context.Context, to chan<- []Change) {
	for p.changed.Wait(ctx) && wakeup.Sleep(ctx, batchDelay) {
		batch := p.takeChanges()
		if len(batch) == 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case to <- batch:
		}
	}
}

// takeChanges returns the latest change of each target that is still probed.
func (p *Prober) takeChanges() (batch []Change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := map[service.Target]State{}
	for _, c := range p.changes {
		if p.targets[c.Target] != nil {
			last[c.Target] = c.State
		}
	}
	p.changes = nil
	for w, state := range last {
		batch = append(batch, Change{w, state})
	}
	return batch
}
