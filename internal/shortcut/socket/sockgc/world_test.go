// SPDX-License-Identifier: Apache-2.0

package sockgc

import (
	"context"
	"iter"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node/netns"
)

// A world has stale sockets in one namespace, terminates them like the kernel, and records its passes. A scan
// takes some time.
type world struct {
	mu       sync.Mutex
	udp, tcp []bpf.StaleSocket
	takes    time.Duration
	fails    error
	serving  map[bpf.Connection]bool
	sweeps   []time.Duration // since begin
	tcpLooks int
	resets   []time.Duration
	begin    time.Time
}

func (w *world) UDP() ([]bpf.StaleSocket, error) {
	time.Sleep(w.takes)
	w.mu.Lock()
	defer w.mu.Unlock()
	found := w.udp
	w.udp = nil
	if len(found) > 0 || w.fails != nil {
		return found, w.fails
	}
	w.sweeps = append(w.sweeps, time.Since(w.begin))
	return nil, nil
}

func (w *world) TCP(toAbort ...uint64) (found []bpf.StaleSocket, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tcpLooks++
	left := w.tcp[:0]
	for _, s := range w.tcp {
		if w.serving[s.Connection()] {
			left = append(left, s)
			continue
		}
		if slices.Contains(toAbort, s.Cookie) {
			s.Destroyed = 1
			w.resets = append(w.resets, time.Since(w.begin))
		} else {
			left = append(left, s)
		}
		found = append(found, s)
	}
	w.tcp = slices.Clone(left)
	return found, nil
}

func (w *world) serves(c bpf.Connection) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.serving[c]
}

// returns changes whether a backend serves.
func (w *world) returns(j *Collector, c bpf.Connection, serves bool) {
	w.mu.Lock()
	w.serving[c] = serves
	w.mu.Unlock()
	j.Changed(false, !serves)
}

// run starts a collector for the world, inside a bubble, until the test ends.
func (w *world) run(t *testing.T, config Config, method Method) *Collector {
	t.Helper()
	w.begin, w.serving = time.Now(), map[bpf.Connection]bool{}
	config.Serves, config.Log = w.serves, slog.New(slog.DiscardHandler)
	j := newCollector(config, method, w, "", nil)
	j.namespaces = func() iter.Seq2[*netns.Namespace, error] {
		return func(yield func(*netns.Namespace, error) bool) {
			ns, err := netns.Current()
			if err == nil {
				defer ns.Close()
			}
			yield(ns, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- j.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return j
}

func stale(protocol uint8, cookie uint64) bpf.StaleSocket {
	s := bpf.StaleSocket{Cookie: cookie, Protocol: protocol}
	s.Service.Bytes = netip.MustParseAddr("10.96.0.1").As16()
	s.Backend.Bytes = netip.MustParseAddr("10.10.1.1").As16()
	return s
}

// swept returns when GC passes ended that found nothing more.
func (w *world) swept() []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.sweeps)
}

func (w *world) tcpLooked() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tcpLooks
}

// sleep lets the collector run for a time.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
