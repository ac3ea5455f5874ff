// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"beeline.io/beeline/test/lab"
)

// A load is clients that connect until it is stopped.
type load struct {
	name    string
	pause   time.Duration // between a client's connections
	allowed []string      // pods that may answer
	end     chan struct{}
	clients sync.WaitGroup

	mu       sync.Mutex
	answers  map[string]int // by pod
	failures []string       // the first few
	failed   int
}

// startLoad starts a client on each host, which connects as fast as it can.
func (w *world) startLoad(name string, from []*lab.Host, f family, to netip.AddrPort, allowed string) *load {
	return w.begin(&load{name: name}, from, f, to, allowed)
}

// startPacedLoad is startLoad with a millisecond between a client's connections.
func (w *world) startPacedLoad(name string, from []*lab.Host, f family, to netip.AddrPort, allowed string) *load {
	return w.begin(&load{name: name, pause: time.Millisecond}, from, f, to, allowed)
}

func (w *world) begin(l *load, from []*lab.Host, f family, to netip.AddrPort, allowed string) *load {
	l.allowed, l.end, l.answers = strings.Fields(allowed), make(chan struct{}), map[string]int{}
	for _, host := range from {
		l.clients.Go(func() {
			for {
				select {
				case <-l.end:
					return
				default:
				}
				answer, err := ask(host, f, to)
				l.record(host, answer, err)
				time.Sleep(l.pause)
			}
		})
	}
	w.t.Cleanup(l.stop)
	return l
}

func (l *load) record(from *lab.Host, answer lab.Answer, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && !slices.Contains(l.allowed, answer.Pod) {
		err = fmt.Errorf("%s answers, want one of %v", answer.Pod, l.allowed)
	}
	if err == nil {
		l.answers[answer.Pod]++
		return
	}
	l.failed++
	if len(l.failures) < 5 {
		l.failures = append(l.failures, fmt.Sprintf("%s: %v", from.Name, err))
	}
}

// sum is the number of connections answered so far.
func (l *load) sum() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for count := range maps.Values(l.answers) {
		n += count
	}
	return n
}

// awaitMore waits until so many more connections were answered, so that the next step happens under load.
func (l *load) awaitMore(w *world, n int) {
	w.t.Helper()
	before := l.sum()
	w.eventually(fmt.Sprintf("%d more connections to %s", n, l.name), func() bool { return l.sum() >= before+n || l.hasFailed() })
}

func (l *load) hasFailed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed > 0
}

func (l *load) stop() {
	l.mu.Lock()
	select {
	case <-l.end:
	default:
		close(l.end)
	}
	l.mu.Unlock()
	l.clients.Wait()
}

// wantNoFailure stops the load and fails the test if any connection failed.
func (l *load) wantNoFailure(t *testing.T) {
	t.Helper()
	l.stop()
	if l.failed > 0 {
		t.Errorf("%s: %d of %d connections failed, the first ones:\n  %s",
			l.name, l.failed, l.failed+l.sum(), strings.Join(l.failures, "\n  "))
	}
	if l.sum() == 0 {
		t.Errorf("%s: no connection was made", l.name)
	}
	t.Logf("%s: %d connections, %v", l.name, l.sum(), l.answers)
}
