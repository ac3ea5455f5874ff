// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// console prints lines, and progress if nothing was printed for a while.
type console struct {
	mu       sync.Mutex
	out      io.Writer
	begun    time.Time
	printed  time.Time                 // when the last line was
	progress map[*result]func() string // of the running steps
	done     chan struct{}
}

// newConsole prints the progress of a step after each beat without another line.
func newConsole(out io.Writer, beat time.Duration) *console {
	now := time.Now()
	c := &console{out: out, begun: now, printed: now, progress: map[*result]func() string{}, done: make(chan struct{})}
	go c.watch(beat)
	return c
}

func (c *console) watch(beat time.Duration) {
	ticks := time.NewTicker(max(beat/30, time.Millisecond))
	defer ticks.Stop()
	for {
		select {
		case <-c.done:
			return
		case now := <-ticks.C:
			c.locked(func() {
				if now.Sub(c.printed) < beat {
					return
				}
				for _, progress := range c.progress {
					c.print(fmt.Sprintf("[%s] %s", time.Since(c.begun).Round(time.Second), progress()))
				}
			})
		}
	}
}

// begin and end delimit the time in which a step's progress is printed.
func (c *console) begin(r *result, progress func() string) {
	c.locked(func() { c.progress[r] = progress })
}
func (c *console) end(r *result) { c.locked(func() { delete(c.progress, r) }) }

func (c *console) stop() { close(c.done) }

// locked keeps others from printing, and from reading progress, while f runs.
func (c *console) locked(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// print prints a line; the console is locked.
func (c *console) print(line string) {
	c.printed = time.Now()
	fmt.Fprintln(c.out, line)
}

// say is print for callers without the lock.
func (c *console) say(format string, args ...any) {
	c.locked(func() { c.print(fmt.Sprintf(format, args...)) })
}
