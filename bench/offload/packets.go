// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"beeline.io/beeline/bench/forward"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/internal/shortcut/offload"
	"beeline.io/beeline/test/lab"
)

const (
	offloadFlows = 50_000
	// A smoke test has few: what begins flows is slow.
	flowsSmoke = 500
	// The rate at which flows enter the cache, in packets per second: the agent decides about each flow.
	learnRate    = 100_000
	learnFlows   = 64
	learnPackets = 8
	// The kernel takes a UDP flow for established when it is two seconds old.
	pause     = 2500 * time.Millisecond
	learnTime = 3 * time.Minute
	learned   = 0.99 // of the packets of a burst are to be forwarded by the cache
	// With many flows a packet in several checks its flow: the slice is longer than the interval of the checks.
	sliceMany = 400 * time.Millisecond
)

// plain is a destination that no rule translates.
var plain = netip.AddrPortFrom(netip.MustParseAddr("10.10.9.12"), harness.ServerPort)

// packetCase is packets of so many flows in turn.
type packetCase struct {
	nat   bool
	flows uint32
}

func packetCases() (all []packetCase) {
	for _, nat := range []bool{false, true} {
		for _, flows := range []uint32{1, 1000, offloadFlows} {
			all = append(all, packetCase{nat, flows})
		}
	}
	return all
}

// sides is how many sides the case has.
func (c packetCase) sides() int {
	if c.nat {
		return offloadSides
	}
	return redirect + 1
}

func (c packetCase) series(side int) result.Series {
	return result.Series{Part: partName, Scenario: "UDP, established, as fast as it goes, " + offloadNAT(c.nat), Side: names[side], Family: "IPv4",
		Parameters: result.Parameters{"flows": int(c.flows)}}
}

func (c packetCase) String() string {
	return fmt.Sprintf("packets, %s, %d flows", offloadNAT(c.nat), c.flows)
}

// offloadCases are those that --case selects.
func offloadCases(b *harness.Bench) (all []packetCase) {
	for _, c := range packetCases() {
		if b.Only == nil || b.Only.MatchString(c.String()) {
			all = append(all, c)
		}
	}
	return all
}

// offloadRig is a router whose agent has ended: its programs are attached only in slices of the cache.
type offloadRig struct {
	bench    *harness.Bench
	line     *forward.Line
	router   *lab.Host
	bpffs    string
	device   int
	programs map[ebpf.AttachType]*ebpf.Program // of the cache
	redirect *ebpf.Collection                  // of the side "only redirect"
	links    []link.Link
}

func runPackets(ctx context.Context, b *harness.Bench) (err error) {
	rates := &forward.Rig{Bench: b, CPUs: forward.CPUs(b.Two)}
	defer func() { err = errors.Join(err, rates.End()) }()
	w, err := rates.NewWorld()
	if err != nil {
		return err
	}
	router := w.Host("node-a")
	rules := fmt.Sprintf(offloadRules, forward.Service.Addr(), forward.Endpoint.Addr(), harness.ServerPort)
	if err := harness.RunOn(ctx, router, rules, "nft", "-f", "-"); err != nil {
		return err
	}
	cases := offloadCases(b)
	if len(cases) == 0 {
		return nil
	}
	flows := uint32(flowsSmoke)
	for _, c := range cases {
		if !b.Smoke {
			flows = max(flows, c.flows)
		}
	}
	line, err := forward.NewLine(ctx, w, router.Name, rates.CPUs, flows)
	if err != nil {
		return err
	}
	rates.Lines = append(rates.Lines, line)
	agent, err := w.StartAgent(b.Program, router.Name, "off", "--offload-devices=eth0", "--offload-provider=cache", "--offload-threshold=1", fmt.Sprintf("--offload-max-flows=%d", 8*flows))
	if err != nil {
		return err
	}
	rig := &offloadRig{bench: b, line: line, router: router, bpffs: agent.BPFFS(), device: line.Near, programs: map[ebpf.AttachType]*ebpf.Program{}}
	defer func() { err = errors.Join(err, rig.end()) }()
	sides := map[bool]*forward.Side{
		false: {Line: line, Service: plain, Becomes: forward.BecomesNothing, Begun: forward.RuleCount(ctx, router, `ct state new counter packets (\d+) `, []string{"nft", "list", "chain", "ip", "router", "forward"})},
		true:  {Line: line, Set: 1, Service: forward.Service, Becomes: forward.BecomesSNAT, Begun: forward.RuleCount(ctx, router, `daddr \S+ counter packets (\d+) `, []string{"nft", "list", "chain", "ip", "router", "before"})},
	}
	for _, nat := range []bool{false, true} {
		if err := sides[nat].Prove(ctx, pause); err != nil {
			return fmt.Errorf("%s: %w", offloadNAT(nat), err)
		}
	}
	// The second time because the agent has given up the first flows if they were idle for long.
	for _, nat := range []bool{false, true, false} {
		if err := rig.learn(ctx, sides[nat]); err != nil {
			return fmt.Errorf("%s: %w", offloadNAT(nat), err)
		}
	}
	if rig.redirect, err = forward.LoadTCYardsticks(router.Addr4); err != nil {
		return err
	}
	if err := errors.Join(agent.Stop(), rig.take()); err != nil {
		return err
	}
	return rig.measureAll(ctx, cases, sides)
}

func (rig *offloadRig) end() error {
	err := rig.detach()
	for _, p := range rig.programs {
		p.Close()
	}
	if rig.redirect != nil {
		rig.redirect.Close()
	}
	return err
}

// cached is how many packets the flow cache has forwarded.
func cached(bpffs string) (uint64, error) {
	packets, _, err := offload.ReadCounters(bpffs)
	return packets["cache"], err
}

// past is how many packets each side has forwarded past the stack.
func (rig *offloadRig) past() (n [redirect + 1]uint64, err error) {
	n[cache], err = cached(rig.bpffs)
	return n, errors.Join(err, rig.redirect.Variables["redirected"].Get(&n[redirect]))
}

// learn sends until the cache has the flows: packets of a few flows at a time, because one that has to share its place
// in the table of counts takes longer.
func (rig *offloadRig) learn(ctx context.Context, s *forward.Side) error {
	all := forward.Burst{Set: s.Frames(), Packets: uint64(s.Line.Flows), Like: s.Like(), Pace: time.Second / learnRate}
	var taken uint64
	for end := time.Now().Add(learnTime); time.Now().Before(end); {
		before, err := cached(rig.bpffs)
		if err != nil {
			return err
		}
		if _, err := s.Line.Run(ctx, all); err != nil {
			return err
		}
		after, err := cached(rig.bpffs)
		if err != nil {
			return err
		}
		if taken = after - before; float64(taken) >= learned*float64(all.Packets) {
			return nil
		}
		if err := sendFew(ctx, s, all); err != nil {
			return err
		}
	}
	packets, _, err := offload.ReadCounters(rig.bpffs)
	return errors.Join(err, fmt.Errorf("the flow cache forwards %d of %d packets, one of each flow; all packets: %v", taken, all.Packets, packets))
}

// sendFew sends packets of a few flows at a time.
func sendFew(ctx context.Context, s *forward.Side, all forward.Burst) error {
	for first := uint32(0); first < all.Set.Count; first += learnFlows {
		few := all
		few.Set.First += first
		few.Set.Count = min(learnFlows, all.Set.Count-first)
		few.Packets = learnPackets * uint64(few.Set.Count)
		if _, err := s.Line.Run(ctx, few); err != nil {
			return err
		}
	}
	return nil
}

// take detaches the programs, and keeps them.
func (rig *offloadRig) take() error {
	paths, err := filepath.Glob(filepath.Join(rig.bpffs, "links", offload.ComponentName+"-*"))
	if err != nil || len(paths) == 0 {
		return errors.Join(err, errors.New("flow offload is at no device"))
	}
	for _, path := range paths {
		l, err := link.LoadPinnedLink(path, nil)
		if err != nil {
			return err
		}
		defer l.Close()
		info, err := l.Info()
		if err != nil {
			return err
		}
		if int(info.TCX().Ifindex) != rig.device {
			return fmt.Errorf("%s is at device %d, want %d", path, info.TCX().Ifindex, rig.device)
		}
		if rig.programs[ebpf.AttachType(info.TCX().AttachType)], err = ebpf.NewProgramFromID(info.Program); err != nil {
			return err
		}
		if err := errors.Join(l.Detach(), l.Unpin()); err != nil {
			return err
		}
	}
	return nil
}

func (rig *offloadRig) attach(programs map[ebpf.AttachType]*ebpf.Program) error {
	return rig.router.Do(func() error {
		for at, program := range programs {
			l, err := link.AttachTCX(link.TCXOptions{Interface: rig.device, Program: program, Attach: at})
			if err != nil {
				return err
			}
			rig.links = append(rig.links, l)
		}
		return nil
	})
}

func (rig *offloadRig) detach() error {
	links := rig.links
	rig.links = nil
	return harness.CloseAll(links)
}

func (rig *offloadRig) measureAll(ctx context.Context, cases []packetCase, sides map[bool]*forward.Side) error {
	for round := range min(rig.bench.Runs, 2*forward.Rounds) {
		for _, c := range cases {
			for _, side := range harness.Turns(round, c.sides()) {
				if err := rig.measure(ctx, c, sides[c.nat], side); err != nil {
					return fmt.Errorf("%s, %d flows, %s: %w", offloadNAT(c.nat), c.flows, names[side], err)
				}
			}
		}
	}
	return nil
}

// measure is a slice of packets on one side, and the proof of their path.
func (rig *offloadRig) measure(ctx context.Context, c packetCase, s *forward.Side, side int) error {
	programs := map[ebpf.AttachType]*ebpf.Program{}
	switch side {
	case cache:
		programs = rig.programs
	case redirect:
		programs[ebpf.AttachTCXIngress] = rig.redirect.Programs[forward.RatesTCProgRatesTcRedirect]
	}
	if err := rig.attach(programs); err != nil {
		return err
	}
	defer rig.detach()
	slice := forward.Burst{Set: s.Frames().Part(c.flows), Packets: math.MaxInt64, Limit: forward.SliceLength, Like: s.Like()}
	if c.flows == offloadFlows {
		slice.Limit = sliceMany
	}
	if rig.bench.Smoke {
		slice.Limit = forward.SliceLengthSmoke
	}
	// The first moment loads programs and tables into the caches, and has each flow checked.
	warm := slice
	warm.Packets, warm.Limit = uint64(max(2*forward.Flows, slice.Set.Count)), 0
	if _, err := s.Line.Run(ctx, warm); err != nil {
		return err
	}
	before, err := rig.past()
	if err != nil {
		return err
	}
	o, err := s.Slice(ctx, slice)
	if err != nil {
		return err
	}
	after, err := rig.past()
	if err != nil {
		return err
	}
	want := map[int]float64{cache: learned, redirect: 1}
	for of := range after {
		taken := float64(after[of]-before[of]) / float64(o.Sent)
		if of == side && taken < want[of] || of != side && taken > 0 {
			return fmt.Errorf("side %q has forwarded %.3g %% of %d packets", names[of], 100*taken, o.Sent)
		}
	}
	if o.Strange > 0 {
		return fmt.Errorf("%d of %d packets were not translated", o.Strange, o.Sent)
	}
	rig.bench.Results.AddSide(names[stack], c.series(side), harness.MetricPacketCPU, float64(o.CPU.Nanoseconds())/float64(o.Sent))
	return nil
}
