// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/testrun"
)

// A peerRig is a prelude with a peer's program, and with the yardstick for the same packets. It runs where the
// benchmark was started, not in a lab: the peer's devices and routes are there. A test run sends nothing,
// unless the program itself clones packets.
type peerRig struct {
	*driver
	peer    *Peer
	resized bool // the peer changes the packets' length
	verdict uint32
}

// runPeers times the peers, each with the yardstick, with the edge's numbers of flows.
func runPeers(ctx context.Context, b *harness.Bench, peers []*Peer) error {
	for _, p := range peers {
		if err := measurePeer(ctx, b, p); err != nil {
			return fmt.Errorf("--peer %s: %w", p.flag, err)
		}
	}
	return nil
}

func measurePeer(ctx context.Context, b *harness.Bench, p *Peer) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	free, err := pin(b.One.Client)
	if err != nil {
		return err
	}
	defer free()
	most, packets := uint32(someFlows), uint32(somePackets)
	if b.Smoke {
		most, packets = 100, 200
	}
	rig, err := newPeerRig(p, most)
	if err != nil {
		return err
	}
	defer rig.collection.Close()
	for _, flows := range []uint32{1, most} {
		if err := rig.measure(ctx, b, flows, packets); err != nil {
			return fmt.Errorf("%d flows: %w", flows, err)
		}
	}
	return nil
}

func newPeerRig(p *Peer, flows uint32) (*peerRig, error) {
	d, err := driverOf(p, flows)
	if err != nil {
		return nil, err
	}
	rig := &peerRig{driver: d, peer: p}
	if err := rig.fill(flows); err != nil {
		rig.collection.Close()
		return nil, err
	}
	return rig, nil
}

// driverOf tries how a program may be loaded: the kernel lets a program call only similar ones, and does not
// report how one was loaded.
func driverOf(p *Peer, flows uint32) (*driver, error) {
	load, attaches, flags := testrun.LoadCostTC, []ebpf.AttachType{ebpf.AttachNone, ebpf.AttachTCXIngress, ebpf.AttachTCXEgress}, []uint32{0}
	if p.hook == hookXDP {
		load = testrun.LoadCostXDP
		attaches, flags = []ebpf.AttachType{ebpf.AttachXDP, ebpf.AttachNone}, []uint32{0, unix.BPF_F_XDP_HAS_FRAGS}
	}
	var refused error
	for _, attach := range attaches {
		for _, flag := range flags {
			spec, err := load()
			if err != nil {
				return nil, err
			}
			spec.Maps[testrun.CostTCMapFrames].MaxEntries = flows
			for _, program := range spec.Programs {
				program.AttachType, program.Flags = attach, program.Flags&^unix.BPF_F_XDP_HAS_FRAGS|flag
			}
			d, err := newDriver(spec, nil, p.hook == hookXDP, make([]uint32, 48), p.program)
			if err == nil {
				return d, nil
			}
			if !errors.Is(err, unix.EINVAL) {
				return nil, err
			}
			refused = err
		}
	}
	return nil, fmt.Errorf("program %d cannot be called by another (%w): was it loaded for a device (offload), or not compiled (net.core.bpf_jit_enable)?", p.id, refused)
}

// fill writes the frames of all flows, and makes the yardstick balance their destination.
func (rig *peerRig) fill(flows uint32) error {
	for n := range flows {
		if err := rig.collection.Maps[testrun.CostTCMapFrames].Put(n, testrun.Frame(rig.peer.template.flow(n)[:len(testrun.Frame{})])); err != nil {
			return err
		}
	}
	t := rig.peer.template
	var endpoints []netip.Addr
	for i := range remoteEndpoints {
		endpoints = append(endpoints, harness.Plus(t.asked.Addr(), 1+i))
	}
	if err := testrun.FillMinimal(rig.collection.Maps, t.asked, t.protocol, endpoints...); err != nil {
		return err
	}
	// The verdict on packets must not depend on the flow.
	set := rig.set(flows)
	for i, at := range []uint32{0, flows / 2, flows - 1} {
		// With a new packet each time, nothing has to be restored.
		verdict, packet, _, err := rig.run(targetEdge, set, at, 1)
		if err != nil {
			return err
		}
		if i > 0 && verdict != rig.verdict {
			return fmt.Errorf("the verdict on flow 0 is %s and on flow %d %s: fill the peer's maps so that it treats all sources alike",
				verdictName(rig.peer.hook, rig.verdict), at, verdictName(rig.peer.hook, verdict))
		}
		rig.verdict = verdict
		rig.resized = rig.resized || len(packet) != len(testrun.Frame{})+len(set.Rest)
	}
	return nil
}

// set is the first frames.
func (rig *peerRig) set(flows uint32) testrun.FrameSet {
	return testrun.FrameSet{Count: flows, Resized: rig.resized, Rest: rig.peer.template.bytes[min(len(testrun.Frame{}), len(rig.peer.template.bytes)):]}
}

func (rig *peerRig) measure(ctx context.Context, b *harness.Bench, flows, packets uint32) error {
	set := rig.set(flows)
	if set.Resized && !rig.restores {
		packets = min(packets, onePackets)
		stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
		if err != nil {
			return fmt.Errorf("count the time of programs: %w", err)
		}
		defer stats.Close()
	}
	series := result.Series{Part: PartName, Scenario: fmt.Sprintf("%s, %s", rig.peer.Name, verdictName(rig.peer.hook, rig.verdict)), Hook: rig.peer.hook,
		Side: rig.peer.Name, Family: "IPv6", Parameters: result.Parameters{"flows": int(flows)}}
	if rig.peer.template.is4 {
		series.Family = "IPv4"
	}
	yard := series
	yard.Side = sideMinimal
	next := uint32(0)
	for round := range min(b.Runs, edgeRounds) + 1 {
		if err := ctx.Err(); err != nil {
			return err
		}
		peer, err := rig.sample(targetEdge, rig.verdict, set, next, packets)
		if err != nil {
			return err
		}
		minimal, err := rig.sample(targetMinimal, verdicts[rig.peer.hook][1], set, next, packets)
		if err != nil {
			return fmt.Errorf("yardstick: %w", err)
		}
		next += packets
		if round > 0 { // the first one is the warm-up
			b.Results.Add(result.Row{Series: series, Metric: metricPacket, Against: sideMinimal}, peer)
			b.Results.Add(result.Row{Series: yard, Metric: metricPacket}, minimal)
		}
	}
	return nil
}

// sample is the cost of a program over none. Its verdict must not change.
func (rig *peerRig) sample(t target, want uint32, set testrun.FrameSet, next, packets uint32) (float64, error) {
	_, _, nothing, err := rig.run(targetNothing, set, next, packets)
	if err != nil {
		return 0, err
	}
	verdict, _, all, err := rig.run(t, set, next, packets)
	if err == nil && verdict != want {
		err = fmt.Errorf("the verdict has become %s after %s: are there limits or timeouts in its maps?", verdictName(rig.peer.hook, verdict), verdictName(rig.peer.hook, want))
	}
	return all - nothing, err
}
