// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Load sends the same probes without pause, each kind of client separately, so that a waiting one does not
// delay others.
type Load struct {
	side     *Side
	scenario *Scenario
	end      chan struct{}
	running  sync.WaitGroup

	mu   sync.Mutex
	seen []Sighting
	errs []error
}

// Sighting is the result of one connection of a Load, with its begin and end.
type Sighting struct {
	Probe      Probe
	Begin, End time.Time
	Observation
}

func (s *Sighting) String() string {
	return fmt.Sprintf("%s: %+v: %v", s.Begin.Format("05.000"), s.Probe, s.Observation)
}

// StartLoad begins to send. pace is the time between two probes of one client; what exceeds patience is
// silence.
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
			return // the test has ended
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

// Stop ends the load, once the current probes have ended, and returns the results. An error is one of the test
// itself.
func (l *Load) Stop() ([]Sighting, error) {
	close(l.end)
	l.running.Wait()
	if len(l.seen) == 0 {
		l.errs = append(l.errs, fmt.Errorf("the load on the side of %s has sent nothing", l.side.Name))
	}
	return l.seen, errors.Join(l.errs...)
}
