// SPDX-License-Identifier: Apache-2.0

package healthcheck

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"beeline.io/beeline/internal/cluster/service"
)

// network simulates the targets' responses without a kernel. Time passes only where a test says so.
type network struct {
	mu     sync.Mutex
	fails  map[netip.Addr]error
	hangs  map[netip.Addr]bool
	asked  map[netip.Addr][]time.Time
	atOnce int
	most   int
}

func newNetwork() *network {
	return &network{fails: map[netip.Addr]error{}, hangs: map[netip.Addr]bool{}, asked: map[netip.Addr][]time.Time{}}
}

func (n *network) set(addr netip.Addr, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fails[addr] = err
}

func (n *network) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	n.mu.Lock()
	n.asked[to.Addr()] = append(n.asked[to.Addr()], time.Now())
	n.atOnce++
	n.most = max(n.most, n.atOnce)
	err, hangs := n.fails[to.Addr()], n.hangs[to.Addr()]
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		n.atOnce--
		n.mu.Unlock()
	}()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	here, there := net.Pipe()
	there.Close()
	return here, nil
}

func (n *network) timesAsked(addr netip.Addr) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.asked[addr])
}

var refused = &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}

func addr(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}) }

// tcp is a target that is probed once a second: down after 3 failures, up after 2 successes.
func tcp(n int) service.Target {
	p := service.Probe{Kind: service.CheckTCP, Interval: time.Second, Timeout: 500 * time.Millisecond, Rise: 2, Fall: 3}
	return service.Target{Addr: netip.AddrPortFrom(addr(n), 80), Probe: p}
}

func as(s Start) func(service.Target) Start { return func(service.Target) Start { return s } }

// run runs a prober in a synctest bubble, and stops it at the end. The channel delivers its changes.
func run(t *testing.T, n *network, options Options, test func(t *testing.T, p *Prober, changes <-chan []Change)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		options.Dial = n.dial
		p, changes, ended := New(options), make(chan []Change), make(chan error)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { ended <- p.Run(ctx, changes) }()
		test(t, p, changes)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		close(changes)
	})
}

func wantState(t *testing.T, p *Prober, target service.Target, up bool, why string) {
	t.Helper()
	if s, ok := p.State(target); !ok || s.Up != up || !strings.Contains(s.Why, why) || why == "" && s.Why != "" {
		t.Errorf("%s is %s, want %s", target.Addr, s, State{Up: up, Why: why})
	}
}

// String is a state in the words of a failed test.
func (s State) String() string {
	health, probe := "down", "the last probe succeeded"
	if s.Up {
		health = "up"
	}
	if s.Why != "" {
		probe = "the last probe failed: " + s.Why
	}
	return health + " (" + probe + ")"
}

// Fall consecutive failures take a target down, Rise successes bring it up; fewer have no effect.
func TestRiseAndFall(t *testing.T) {
	n := newNetwork()
	run(t, n, Options{}, func(t *testing.T, p *Prober, changes <-chan []Change) {
		target, asked := tcp(1), 0
		p.SetTargets([]service.Target{target}, as(Served))
		next := func(err error) (changed bool) {
			n.set(addr(1), err)
			for asked++; n.timesAsked(addr(1)) < asked; {
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(2 * batchDelay)
			select {
			case c := <-changes:
				if len(c) != 1 || c[0].Target != target {
					t.Errorf("reported %+v", c)
				}
				return true
			default:
				return false
			}
		}
		row := []struct {
			err     error
			changed bool
		}{
			{nil, false}, {refused, false}, {refused, false}, {nil, false}, {refused, false}, {refused, false}, {refused, true},
			{refused, false}, {nil, false}, {refused, false}, {nil, false}, {nil, true}, {refused, false}, {nil, false},
		}
		up := true
		var probes []string
		for _, r := range row {
			changed := next(r.err)
			if r.changed {
				up = !up
			}
			want := State{Up: up}
			if r.err != nil {
				want.Why = "connection refused"
			}
			probes = append(probes, map[bool]string{true: "answered", false: "refused"}[r.err == nil])
			s, _ := p.State(target)
			if s.Up != want.Up || s.Why != want.Why || changed != r.changed {
				t.Errorf("%s goes down after 3 failures in a row, and up after 2 successes; after the probes %q it is %s, reported as a change: %t; want it %s, reported: %t",
					target.Addr, probes, s, changed, want, r.changed)
				return // what follows depends on it
			}
		}
		if c := p.Counters(); c.Changes != 2 || c.Probes != uint64(len(row)) || c.Failures != 8 || c.Late != 0 {
			t.Errorf("of %d probes, 8 failed, and 2 changed the state; counted %+v", len(row), c)
		}
	})
}

var starts = map[Start]string{Unknown: "unknown", Served: "served", Unserved: "not served"}

// The assumed state of a target determines how many results the first change takes.
func TestStart(t *testing.T) {
	for _, test := range []struct {
		start  Start
		err    error
		before bool
		probes int // until the change is reported
	}{
		{Unknown, refused, true, 1}, {Served, refused, true, 3}, {Unserved, nil, false, 1},
		{Unknown, nil, true, 0}, {Served, nil, true, 0}, {Unserved, refused, false, 0},
	} {
		n := newNetwork()
		n.set(addr(1), test.err)
		run(t, n, Options{}, func(t *testing.T, p *Prober, changes <-chan []Change) {
			p.SetTargets([]service.Target{tcp(1)}, as(test.start))
			if s, _ := p.State(tcp(1)); s.Up != test.before || s.Probed {
				t.Errorf("a target that was %s when the agent started is up before its first probe: %t (probed: %t), want %t, not probed", starts[test.start], s.Up, s.Probed, test.before)
			}
			select {
			case <-changes:
				if got := n.timesAsked(addr(1)); got != test.probes || p.states()[0].Up == test.before {
					t.Errorf("a target that was %s when the agent started, with probes that end with %v: it is reported as %s after %d probes, want a change after %d (0: none)",
						starts[test.start], test.err, p.states()[0], got, test.probes)
				}
			case <-time.After(10 * time.Second):
				if test.probes != 0 {
					t.Errorf("a target that was %s when the agent started, with probes that end with %v: no change is reported, want one after %d probes",
						starts[test.start], test.err, test.probes)
				}
			}
		})
	}
}

func (p *Prober) states() (all []State) {
	for _, s := range p.States() {
		all = append(all, s)
	}
	return all
}

// Many targets that start together are spread out, stay apart, are each probed once per interval, and go down
// in few batches.
func TestNoHerd(t *testing.T) {
	const many, seconds = 3000, 20
	n := newNetwork()
	run(t, n, Options{}, func(t *testing.T, p *Prober, changes <-chan []Change) {
		var all []service.Target
		for i := range many {
			all = append(all, tcp(i), tcp(i))
		}
		p.SetTargets(all, as(Served))
		begin := time.Now()
		time.Sleep(seconds * time.Second)
		perTick := map[time.Duration]int{}
		n.mu.Lock()
		for a, times := range n.asked {
			if len(times) < seconds*9/11-1 || len(times) > seconds*11/9+1 {
				t.Fatalf("%s was probed %d times in %d s", a, len(times), seconds)
			}
			for i, at := range times {
				perTick[at.Sub(begin).Truncate(100*time.Millisecond)]++
				if i > 0 && (at.Sub(times[i-1]) < 890*time.Millisecond || at.Sub(times[i-1]) > 1110*time.Millisecond) {
					t.Fatalf("%s was probed after %v", a, at.Sub(times[i-1]))
				}
			}
		}
		n.mu.Unlock()
		for tick, probes := range perTick {
			if probes > many/10*2 {
				t.Errorf("%d probes in 100 ms at %v, of %d in a second", probes, tick, many)
			}
		}
		for i := range many {
			n.set(addr(i), refused)
		}
		told := map[service.Target]bool{}
		batches := 0
		for len(told) < many {
			for _, c := range <-changes {
				if told[c.Target] || c.State.Up {
					t.Fatalf("%s is reported twice", c.Target.Addr)
				}
				told[c.Target] = true
			}
			batches++
		}
		if batches > 300 {
			t.Errorf("%d batches for %d changes", batches, many)
		}
	})
}

// No more probes run concurrently than the limit; a waiting target is probed later and does not count as
// failed.
func TestAtOnce(t *testing.T) {
	n := newNetwork()
	for i := range 50 {
		n.hangs[addr(i)] = true
	}
	run(t, n, Options{MaxConcurrent: 10}, func(t *testing.T, p *Prober, changes <-chan []Change) {
		var all []service.Target
		for i := range 60 {
			all = append(all, tcp(i))
		}
		p.SetTargets(all, as(Unknown))
		go func() {
			for range changes {
			}
		}()
		time.Sleep(30 * time.Second)
		for i := range 60 {
			why := "timeout: no connection within 500ms"
			if i >= 50 {
				why = ""
			}
			wantState(t, p, tcp(i), i >= 50, why)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.most != 10 || p.Counters().Late == 0 {
			t.Errorf("%d at once, counted %+v", n.most, p.Counters())
		}
	})
}

// A removed target is neither probed nor reported, even if a probe is in progress; if it is added again, it
// starts anew.
func TestWant(t *testing.T) {
	n := newNetwork()
	n.hangs[addr(1)] = true
	n.set(addr(2), refused)
	run(t, n, Options{}, func(t *testing.T, p *Prober, changes <-chan []Change) {
		p.SetTargets([]service.Target{tcp(1), tcp(2)}, as(Unknown))
		time.Sleep(100 * time.Millisecond) // 2 has failed, 1 is being probed; no change has been received
		p.SetTargets([]service.Target{tcp(3)}, as(Unknown))
		select {
		case told := <-changes:
			// A change that was already sent may arrive: the receiver looks up the state.
			if slices.ContainsFunc(told, func(c Change) bool { return c.Target.Addr.Addr() == addr(1) }) {
				t.Errorf("reported %+v", told)
			}
		case <-time.After(10 * time.Second):
		}
		if a, b := n.timesAsked(addr(1)), n.timesAsked(addr(2)); a != 1 || b != 1 {
			t.Errorf("probed %d and %d times", a, b)
		}
		if _, asked := p.State(tcp(2)); asked || len(p.States()) != 1 {
			t.Errorf("left: %v", p.States())
		}
		before := time.Now()
		p.SetTargets([]service.Target{tcp(2), tcp(3)}, as(Unserved))
		if s, _ := p.State(tcp(2)); s.Up || s.Probed || s.Since.Before(before) {
			t.Errorf("it starts as %+v", s)
		}
		wantState(t, p, tcp(3), true, "")
	})
}

// A target that is removed between its change and the report of it is not reported.
func TestRemovedBeforeTheReport(t *testing.T) {
	n := newNetwork()
	n.set(addr(1), refused)
	n.set(addr(2), refused)
	run(t, n, Options{}, func(t *testing.T, p *Prober, changes <-chan []Change) {
		p.SetTargets([]service.Target{tcp(1), tcp(2)}, as(Unknown))
		time.Sleep(batchDelay / 2) // both have failed
		p.SetTargets([]service.Target{tcp(1)}, as(Unknown))
		if all := <-changes; len(all) != 1 || all[0].Target != tcp(1) {
			t.Errorf("10.0.0.1:80 and 10.0.0.2:80 went down, and 10.0.0.2:80 was removed before the report; reported are %v, want 10.0.0.1:80 alone", all)
		}
	})
}

// A prober ends at once with probes in progress, and does not count them as failed.
func TestStop(t *testing.T) {
	n := newNetwork()
	n.hangs[addr(1)] = true
	synctest.Test(t, func(t *testing.T) {
		p, ended := New(Options{Dial: n.dial}), make(chan error)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { ended <- p.Run(ctx, make(chan []Change)) }()
		p.SetTargets([]service.Target{tcp(1)}, as(Unknown))
		time.Sleep(100 * time.Millisecond)
		begin := time.Now()
		cancel()
		if err := <-ended; err != nil || time.Since(begin) > 0 {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		wantState(t, p, tcp(1), true, "")
	})
}

func TestReasons(t *testing.T) {
	for want, err := range map[string]error{
		"connection refused":           refused,
		"no route to host":             fmt.Errorf("dial: %w", syscall.EHOSTUNREACH),
		"timeout: no answer within 2s": context.DeadlineExceeded,
		"no answer: odd":               errors.New("odd"),
	} {
		if got := reasonOf(err, "no answer", 2*time.Second); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
