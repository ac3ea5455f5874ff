// SPDX-License-Identifier: Apache-2.0

// Package probe asks addresses whether they are well, again and again, and tells
// when what they say has changed. What is asked, and what follows from an answer,
// is for package service to say.
package probe

import (
	"context"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"beeline.io/beeline/internal/service"
)

// Options of a Prober.
type Options struct {
	// Dial makes the connections: see Direct.
	Dial func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
	// AtOnce bounds how many probes are under way; 0: 1000. Others wait meanwhile.
	AtOnce int
}

// Counters are since the prober began.
type Counters struct {
	Probes   uint64 `json:"probes"`
	Failures uint64 `json:"failures"`
	// Changes counts targets that went down or came back.
	Changes uint64 `json:"changes"`
	// Late counts probes that began later than they should by more than their interval, because
	// too many others were under way.
	Late uint64 `json:"late"`
}

// Prober asks targets. Its methods may be called at any time.
type Prober struct {
	options Options
	wake    chan struct{} // holds one token: the schedule has changed
	slots   chan struct{}

	mu       sync.Mutex
	targets  map[service.Target]*target
	schedule schedule
	changes  []Change
	told     chan struct{} // holds one token: changes has some
	counters Counters
}

// New returns a Prober without targets.
func New(options Options) *Prober {
	if options.AtOnce == 0 {
		options.AtOnce = 1000
	}
	return &Prober{
		options: options, targets: map[service.Target]*target{},
		wake: make(chan struct{}, 1), told: make(chan struct{}, 1), slots: make(chan struct{}, options.AtOnce),
	}
}

// spread is the time in which so many new targets are asked for the first time, each:
// a thousand targets take a second.
const spread = time.Millisecond

// Want replaces what is asked. start is called for each target that is new. Who is
// no longer wanted is asked nothing more, and nothing more is told of it.
func (p *Prober) Want(wanted []service.Target, start func(service.Target) Start) {
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
		within := min(time.Duration(len(added))*spread, w.Probe.Interval)
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
	signal(p.wake)
}

// State of a target; false if it is not asked.
func (p *Prober) State(of service.Target) (State, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.targets[of]; t != nil {
		return t.state, true
	}
	return State{}, false
}

// States are those of all targets.
func (p *Prober) States() map[service.Target]State {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[service.Target]State, len(p.targets))
	for w, t := range p.targets {
		all[w] = t.state
	}
	return all
}

// Counters so far.
func (p *Prober) Counters() Counters {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counters
}

// gather is how long a change waits for others: what dies together is told together.
const gather = 20 * time.Millisecond

// Run asks until ctx ends, and sends each batch of changes, a target at most once in
// it. It returns when no probe is under way any more.
func (p *Prober) Run(ctx context.Context, changes chan<- []Change) error {
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { p.tell(ctx, changes) })
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
				p.ask(ctx, t)
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

// next takes the target that is due off the schedule, or says how long there is none.
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

// jitter keeps targets apart that began together: each interval is longer or
// shorter by up to a tenth.
func jitter(interval time.Duration) time.Duration {
	tenth := interval / 10
	return interval - tenth + rand.N(2*tenth+1)
}

// ask asks once and takes the answer in.
func (p *Prober) ask(ctx context.Context, t *target) {
	limit, cancel := context.WithTimeout(ctx, t.Probe.Timeout)
	defer cancel()
	why := Ask(limit, p.options.Dial, t.Target)
	if ctx.Err() != nil {
		return // of the end of this program, not of the target
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
		signal(p.told)
	}
	t.due = t.due.Add(jitter(t.Probe.Interval))
	p.schedule.add(t)
	signal(p.wake)
}

// tell sends changes in batches until ctx ends.
func (p *Prober) tell(ctx context.Context, to chan<- []Change) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.told:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(gather):
		}
		batch := p.take()
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

// take returns the changes so far, of each target that is still asked the last.
func (p *Prober) take() (batch []Change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := map[service.Target]State{}
	for _, c := range p.changes {
		if p.targets[c.Target] != nil {
			last[c.Target] = c.State
		}
	}
	p.changes = nil
	for w := range maps.Keys(last) {
		batch = append(batch, Change{w, last[w]})
	}
	return batch
}

func signal(token chan struct{}) {
	select {
	case token <- struct{}{}:
	default:
	}
}
