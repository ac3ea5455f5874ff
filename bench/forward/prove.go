// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/testrun"
)

// Prove opens the side's flows, checks each of its packets and, if replies pass the balancer, has backends
// reply. Both sides send again after the pause: conntrack counts UDP flows that do so after two seconds as
// established.
func (s *Side) Prove(ctx context.Context, pause time.Duration) error {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return fmt.Errorf("count runs of programs: %w", err)
	}
	defer stats.Close()
	if err := s.Line.write(s.Frames().First, s.flows()); err != nil {
		return err
	}
	flows := s.Line.Flows
	once := Burst{Set: s.Frames(), Packets: uint64(flows), Like: s.Like(), keep: flows}
	if err := s.Counted(ctx, once, uint64(flows), true); err != nil {
		return fmt.Errorf("opening flows: %w", err)
	}
	out, err := s.look()
	if err != nil {
		return err
	}
	if s.answered() {
		if err := s.answer(ctx, out); err != nil {
			return fmt.Errorf("answers: %w", err)
		}
		time.Sleep(pause)
		if err := s.Line.write(s.Frames().First, s.flows()); err != nil {
			return err
		}
	}
	if err := s.Counted(ctx, once, 0, true); err != nil {
		return fmt.Errorf("flows that are established: %w", err)
	}
	if out, err = s.look(); err != nil || !s.answered() {
		return err
	}
	return s.answer(ctx, out)
}

// look reads the result of one packet of each flow.
func (s *Side) look() (all []testrun.Segment, err error) {
	packets, err := s.Line.kept(uint64(s.Line.Flows))
	if err != nil {
		return nil, err
	}
	seen := map[testrun.Segment]bool{}
	for _, p := range packets {
		out, err := s.received(p)
		if err != nil {
			return nil, fmt.Errorf("a packet was translated to %w", err)
		}
		if seen[out] {
			return nil, fmt.Errorf("two flows were translated to %s", out)
		}
		seen[out] = true
		all = append(all, out)
	}
	return all, nil
}

// answer has the backend reply to each packet, and checks that the client gets the reply from the Service.
func (s *Side) answer(ctx context.Context, out []testrun.Segment) error {
	if err := s.Line.write(0, testrun.Turned(out)); err != nil {
		return err
	}
	o, err := s.Line.Run(ctx, Burst{Set: testrun.FrameSet{Count: s.Line.Flows}, Packets: uint64(s.Line.Flows), keep: s.Line.Flows})
	if err != nil {
		return err
	}
	packets, err := s.Line.kept(o.arrived)
	if err != nil {
		return err
	}
	want := map[testrun.Segment]bool{}
	for _, f := range testrun.Turned(s.flows()) {
		want[f] = true
	}
	for _, p := range packets {
		got, _, err := testrun.ParseFrame(p)
		if err != nil {
			return err
		}
		if !want[got] {
			return fmt.Errorf("one was translated to %s", got)
		}
		delete(want, got)
	}
	if len(want) > 0 {
		return fmt.Errorf("%d of %d did not reach their clients", len(want), s.Line.Flows)
	}
	return nil
}

// Counted runs a burst, and checks that each packet has returned correctly, that the balancer has counted each,
// and that so many flows have begun.
func (s *Side) Counted(ctx context.Context, b Burst, begins uint64, stats bool) error {
	_, err := s.Run(ctx, b, begins, stats)
	return err
}

// Run is the same, and returns the outcome.
func (s *Side) Run(ctx context.Context, b Burst, begins uint64, stats bool) (o Outcome, err error) {
	if s.attach != nil {
		if err := s.attach(); err != nil {
			return o, err
		}
	}
	handled, begun := s.handled, s.Begun
	if s.stats && !stats {
		handled = nil
	}
	change := func(of func() (uint64, error), base uint64) (uint64, error) {
		if of == nil {
			return 0, nil
		}
		n, err := of()
		return n - base, err
	}
	packets, err := change(handled, 0)
	if err != nil {
		return o, err
	}
	flows, err := change(begun, 0)
	if err != nil {
		return o, err
	}
	if o, err = s.Line.Run(ctx, b); err != nil {
		return o, err
	}
	if packets, err = change(handled, packets); err != nil {
		return o, err
	}
	if flows, err = change(begun, flows); err != nil {
		return o, err
	}
	switch {
	case o.arrived != o.Sent:
		err = fmt.Errorf("of %d packets sent %d returned correctly, and %d otherwise", o.Sent, o.arrived, o.Strange)
	case handled != nil && (packets < o.Sent || packets > o.Sent+s.others()):
		err = fmt.Errorf("the balancer counted %d of %d packets", packets, o.Sent)
	case begun != nil && flows != begins:
		err = fmt.Errorf("the balancer counted %d new flows, want %d", flows, begins)
	}
	return o, err
}

// others is how many of the kernel's own packets a program may count meanwhile, if it counts everything.
func (s *Side) others() uint64 {
	if s.stats {
		return 64
	}
	return 0
}
