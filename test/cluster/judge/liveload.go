// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Load asks the same questions without pause, each kind of client by itself, so
// that one that waits holds up no other.
type Load struct {
	side     *Side
	scenario *Scenario
	end      chan struct{}
	running  sync.WaitGroup

	mu   sync.Mutex
	seen []Sighting
	errs []error
}

// Sighting is what became of one connection of a Load, and from when to when it
// lasted.
type Sighting struct {
	Probe      Probe
	Begin, End time.Time
	Observation
}

func (s *Sighting) String() string {
	return fmt.Sprintf("%s: %+v: %v", s.Begin.Format("05.000"), s.Probe, s.Observation)
}

// StartLoad begins to ask. pace is the time between two questions of one client;
// silence is what is longer than patience.
func StartLoad(ctx context.Context, side *Side, scenario *Scenario, probes []Probe, pace, patience time.Duration) *Load {
	l := &Load{side: side, scenario: scenario, end: make(chan struct{})}
	type client struct{ from, family, protocol, socket string }
	clients := map[client][]Probe{}
	for _, p := range probes {
		c := client{p.From, p.Family, p.Protocol, p.Socket}
		clients[c] = append(clients[c], p)
	}
	for _, questions := range clients {
		l.running.Go(func() { l.run(ctx, questions, pace, patience) })
	}
	return l
}

func (l *Load) run(ctx context.Context, questions []Probe, pace, patience time.Duration) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-l.end:
			return
		case <-ctx.Done():
			return // the test is over
		case <-tick.C:
		}
		s := Sighting{Probe: questions[i%len(questions)], Begin: time.Now()}
		observation, err := l.side.ask(ctx, l.scenario, s.Probe, patience)
		s.End, s.Observation = time.Now(), observation
		l.mu.Lock()
		if err != nil {
			l.errs = append(l.errs, fmt.Errorf("%+v: %w", s.Probe, err))
		} else {
			l.seen = append(l.seen, s)
		}
		l.mu.Unlock()
	}
}

// Stop ends the load, once the questions asked have come to an end, and returns
// what it has seen. An error is one of the test itself.
func (l *Load) Stop() ([]Sighting, error) {
	close(l.end)
	l.running.Wait()
	if len(l.seen) == 0 {
		l.errs = append(l.errs, fmt.Errorf("the load on the side of %s has asked nothing", l.side.Name))
	}
	return l.seen, errors.Join(l.errs...)
}
