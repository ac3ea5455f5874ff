// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// changes is what events of nf_tables have named since the rules were read.
type changes struct {
	mu     sync.Mutex
	events *events // nil: the kernel has no nf_tables
	any    bool
}

// Follow has the kernel report changes of nftables to Wait. The caller is in the network namespace of Find.
func (f *Finder) Follow() error {
	e, err := newEvents()
	if err != nil {
		return fmt.Errorf("watch the rules of nftables: %w", err)
	}
	f.changes.events = e
	return nil
}

// Wait waits until rules have changed so that Find may have another result, or ctx ends. It may run beside Find.
func (f *Finder) Wait(ctx context.Context) error {
	c := &f.changes
	if c.events == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	for {
		lost, err := c.events.wait(ctx, c.add)
		if lost {
			c.lose()
		}
		if err != nil || c.take() {
			return err
		}
	}
}

// take reports whether rules have changed since it was last called.
func (c *changes) take() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.any = false }()
	return c.any
}

// lose: events were lost, so anything may have changed.
func (c *changes) lose() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.any = true
}

func (c *changes) add(messages []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	whole := eachEvent(messages, func(what uint8, _ []byte) { c.any = c.any || what != unix.NFT_MSG_NEWGEN })
	c.any = c.any || !whole
}
