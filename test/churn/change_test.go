// SPDX-License-Identifier: Apache-2.0

package churn

import (
	"errors"
	"fmt"
	"time"
)

// change changes one endpoint of a Service and writes the Service.
func (c *cluster) change() error {
	for {
		s := c.services[c.random.IntN(len(c.services))]
		if c.random.IntN(10) == 0 { // the shaky ones change all the time
			s = c.services[steadyServices+c.random.IntN(shakyServices)]
		}
		e := s.endpoints[c.random.IntN(len(s.endpoints))]
		if next, ok := c.next(s, e); ok {
			return c.become(s, e, next)
		}
	}
}

// next chooses an endpoint's next condition; !ok: it keeps its condition.
func (c *cluster) next(s *service, e *endpoint) (next condition, ok bool) {
	switch e.condition {
	case ready:
		next = []condition{gone, gone, terminating, notReady}[c.random.IntN(4)]
		return next, s.ready() > s.least
	case terminating:
		return gone, true
	case notReady:
		return []condition{ready, gone}[c.random.IntN(2)], true
	default:
		c.mu.Lock()
		defer c.mu.Unlock()
		return ready, !e.stopping
	}
}

// ready counts a Service's ready endpoints.
func (s *service) ready() (n int) {
	for _, e := range s.endpoints {
		if e.condition == ready {
			n++
		}
	}
	return n
}

// become changes an endpoint. A server starts before its endpoint is added, and stops some time after it was
// removed.
func (c *cluster) become(s *service, e *endpoint, next condition) error {
	if e.condition == gone {
		if err := e.pod.start(e.at); err != nil {
			return err
		}
	}
	if next == ready {
		e.left.Store(0)
		e.removed.Store(0)
	}
	e.condition = next
	if err := c.write(s); err != nil {
		return err
	}
	now := time.Now()
	if next != ready && e.left.Load() == 0 {
		e.left.Store(now.UnixNano())
	}
	if (next == gone || next == notReady) && e.removed.Load() == 0 {
		e.removed.Store(now.UnixNano())
	}
	if next == gone {
		c.stopLater(s, e)
	}
	text := fmt.Sprintf("%s port %d of %s became %v", now.Format("05.000"), e.at.port, e.addresses(), next)
	s.last.Store(&text)
	return nil
}

func (c condition) String() string {
	return [...]string{"ready", "not ready", "terminating", "gone"}[c]
}

// stopLater stops a server after its grace, which passes in small steps: after a stall of the whole machine,
// the agent still has its time.
func (c *cluster) stopLater(s *service, e *endpoint) {
	const step = 10 * time.Millisecond
	steps := grace / step
	if s.least == 0 {
		steps = shakyGrace / step
	}
	c.mu.Lock()
	e.stopping = true
	c.mu.Unlock()
	c.stops.Add(1)
	go func() {
		defer c.stops.Done()
		for range steps {
			time.Sleep(step)
		}
		err := e.pod.stop(e.at)
		c.mu.Lock()
		defer c.mu.Unlock()
		e.stopping = false
		if err != nil {
			c.failures = append(c.failures, err)
		}
	}()
}

// interval is the time from one change to the next. A delay beyond pause is not made up.
const interval, pause = 5 * time.Millisecond, 100 * time.Millisecond

// churn makes as many changes as are due in the given time, at most one per interval: changes missed in a stall
// of the machine are not made all at once. It returns how long they took.
func (c *cluster) churn(lasting time.Duration) (took time.Duration, err error) {
	begin := time.Now()
	next := begin
	for range int(lasting / interval) {
		time.Sleep(time.Until(next))
		if next = next.Add(interval); time.Since(next) > pause {
			next = time.Now()
		}
		if err := c.change(); err != nil {
			return 0, err
		}
	}
	took = time.Since(begin)
	c.mu.Lock()
	defer c.mu.Unlock()
	return took, errors.Join(c.failures...)
}
