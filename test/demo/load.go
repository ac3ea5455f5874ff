// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"beeline.io/beeline/test/lab"
)

// A load is clients that connect without pause, each one connection after the other. It counts by phases: a
// connection belongs to the phase in which it began.
type load struct {
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu     sync.Mutex
	phases []*tally
	done   []int // by client: connections begun and ended in this phase
}

// startLoad has pods of both nodes connect to each of the addresses.
func (d *demo) startLoad(ctx context.Context, phase string, addresses []netip.AddrPort) *load {
	ctx, cancel := context.WithCancel(ctx)
	l := &load{cancel: cancel}
	clients := []*lab.Host{d.lab.Host("a1"), d.lab.Host("b3")}
	l.done = make([]int, len(clients)*len(addresses))
	l.next(phase)
	for i, client := range clients {
		for j, address := range addresses {
			l.group.Go(func() { l.run(ctx, i*len(addresses)+j, client, address) })
		}
	}
	return l
}

func (l *load) run(ctx context.Context, number int, client *lab.Host, address netip.AddrPort) {
	for ctx.Err() == nil {
		phase := l.current()
		answer, err := ask(ctx, client, address)
		if ctx.Err() != nil {
			return // the end of the load, not a failure
		}
		l.mu.Lock()
		phase.add(answer.Pod, err)
		if phase == l.phases[len(l.phases)-1] {
			l.done[number]++
		}
		l.mu.Unlock()
		time.Sleep(time.Millisecond) // leaves some of a small machine's CPU time to others
	}
}

func (l *load) current() *tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.phases[len(l.phases)-1]
}

// next begins another phase.
func (l *load) next(title string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.phases = append(l.phases, &tally{title: title})
	clear(l.done)
}

// await waits until each client has begun and ended n connections in this phase. All earlier ones have ended
// then, too.
func (l *load) await(ctx context.Context, n int) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		l.mu.Lock()
		least := slices.Min(l.done)
		l.mu.Unlock()
		if least >= n || ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("a client made only %d of %d connections in %s", least, n, patience)
		}
	}
}

// stop ends the load.
func (l *load) stop() {
	l.cancel()
	l.group.Wait()
}
