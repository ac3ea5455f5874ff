// SPDX-License-Identifier: Apache-2.0

// Package selftest proves that a provider of flow offload shortens flows on the running kernel and damages none: it
// sends real TCP connections and UDP datagrams, with and without NAT, through a router in network namespaces of its
// own. The version of a kernel says nothing: in Linux 6.19 flowtables damage TCP connections with NAT.
package selftest

import (
	"context"
	"fmt"
	"time"

	"beeline.io/beeline/internal/node/netns"
	"beeline.io/beeline/internal/util/wakeup"
)

// A Provider shortens flows that a router forwards.
type Provider interface {
	// Attach has the provider take flows between devices of a network namespace, after threshold packets of a
	// direction.
	Attach(router *netns.Namespace, devices []string, threshold int) error
	// Detach ends that. The namespace still exists.
	Detach() error
}

const (
	// budget is the time that Run may take without a deadline.
	budget = 2 * time.Second
	// threshold is the provider's, in packets.
	threshold = 4
	// streamed is how much each TCP connection transfers, in octets in each direction.
	streamed = 256 << 10
)

// Run tests a provider. It takes some tenths of a second, at most two seconds or until ctx's deadline, and leaves
// nothing behind. The error says which flow failed and how, or that its packets still passed the stack.
func Run(ctx context.Context, p Provider) (err error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, budget)
		defer cancel()
	}
	w, err := NewWorld()
	if err != nil {
		return fmt.Errorf("self-test: %w", err)
	}
	defer w.Close()
	if err := p.Attach(w.Router, []string{ClientDevice, ServerDevice}, threshold); err != nil {
		return err
	}
	defer func() {
		if failed := p.Detach(); err == nil {
			err = failed
		}
	}()
	for _, k := range w.Kinds(Plain, Both) {
		if err := w.prove(ctx, k); err != nil {
			return fmt.Errorf("self-test: %w", err)
		}
	}
	return nil
}

// prove tests one kind of flow.
func (w *World) prove(ctx context.Context, k Kind) error {
	f, err := w.Open(ctx, k)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := w.AwaitShortcut(ctx, f, threshold); err != nil {
		return err
	}
	if k.Network == "udp" {
		return nil
	}
	if err := f.Stream(streamed); err != nil {
		return err
	}
	return w.finish(f)
}

// finish ends a connection; each FIN has to pass the stack, so that conntrack sees it.
func (w *World) finish(f *Flow) error {
	before, err := w.Forwarded()
	if err != nil {
		return err
	}
	if err := f.Finish(); err != nil {
		return err
	}
	after, err := w.Forwarded()
	if err == nil && after < before+2 {
		err = fmt.Errorf("%s: a FIN did not pass the stack", f.Kind)
	}
	return err
}

// probeRounds is the number of exchanges by which Shortened decides.
const probeRounds = 5

// AwaitShortcut exchanges messages until the packets of a flow pass the stack no more. threshold is the provider's.
func (w *World) AwaitShortcut(ctx context.Context, f *Flow, threshold int) error {
	if err := f.Exchange(threshold + 1); err != nil {
		return err
	}
	for {
		short, err := w.Shortened(f)
		if err != nil || short {
			return err
		}
		if !wakeup.Sleep(ctx, 10*time.Millisecond) {
			return fmt.Errorf("%s: after %d messages the packets still pass the stack", f.Kind, f.round)
		}
	}
}

// Shortened exchanges some messages, and reports whether all their packets were shortened in both directions. Nothing
// else may use the router meanwhile.
func (w *World) Shortened(f *Flow) (bool, error) {
	before, err := w.Forwarded()
	if err != nil {
		return false, err
	}
	if err := f.Exchange(probeRounds); err != nil {
		return false, err
	}
	after, err := w.Forwarded()
	return after == before, err
}
