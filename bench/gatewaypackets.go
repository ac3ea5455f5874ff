// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

const (
	gatewayFlows = 50_000
	// A smoke test has few: what begins flows is slow.
	gatewayFlowsSmoke = 500
	// The rate at which flows enter the cache, in packets per second: the agent decides about each flow.
	gatewayLearnRate    = 100_000
	gatewayLearnFlows   = 64
	gatewayLearnPackets = 8
	// The kernel takes a UDP flow for established when it is two seconds old.
	gatewayPause     = 2500 * time.Millisecond
	gatewayLearnTime = 3 * time.Minute
	gatewayLearned   = 0.99 // of the packets of a burst are to be forwarded by the cache
	// With many flows a packet in several checks its flow: the slice is longer than the interval of the checks.
	gatewaySliceMany = 400 * time.Millisecond
)

// gatewayPlain is a destination that no rule translates.
var gatewayPlain = netip.AddrPortFrom(netip.MustParseAddr("10.10.9.12"), serverPort)

// gatewayPacketCase is packets of so many flows in turn.
type gatewayPacketCase struct {
	nat   bool
	flows uint32
}

func gatewayPacketCases() (all []gatewayPacketCase) {
	for _, nat := range []bool{false, true} {
		for _, flows := range []uint32{1, 1000, gatewayFlows} {
			all = append(all, gatewayPacketCase{nat, flows})
		}
	}
	return all
}

// sides is how many sides the case has.
func (c gatewayPacketCase) sides() int {
	if c.nat {
		return gatewaySides
	}
	return gatewayRedirect + 1
}

func (c gatewayPacketCase) series(side int) result.Series {
	return result.Series{Part: partGateway, Scenario: "UDP, established, as fast as it goes, " + gatewayNAT(c.nat), Side: gatewayNames[side], Family: "IPv4",
		Parameters: result.Parameters{"flows": int(c.flows)}}
}

func (c gatewayPacketCase) String() string {
	return fmt.Sprintf("packets, %s, %d flows", gatewayNAT(c.nat), c.flows)
}

// gatewayCases are those that --case selects.
func (b *bench) gatewayCases() (all []gatewayPacketCase) {
	for _, c := range gatewayPacketCases() {
		if b.only == nil || b.only.MatchString(c.String()) {
			all = append(all, c)
		}
	}
	return all
}

// gatewayRig is a router whose agent has ended: its programs are attached only in slices of the cache.
type gatewayRig struct {
	bench    *bench
	line     *rateLine
	router   *lab.Host
	bpffs    string
	device   int
	programs map[ebpf.AttachType]*ebpf.Program // of the cache
	redirect *ebpf.Collection                  // of the side "only redirect"
	links    []link.Link
}

func runGatewayPackets(ctx context.Context, b *bench) (err error) {
	rates := &rateRig{bench: b, cpus: rateCPUs(b.two)}
	defer func() { err = errors.Join(err, rates.end()) }()
	w, err := rates.newWorld()
	if err != nil {
		return err
	}
	router := w.Host("node-a")
	if err := nftRun(ctx, router, fmt.Sprintf(gatewayRules, rateService.Addr(), rateEndpoint.Addr(), serverPort)); err != nil {
		return err
	}
	cases := b.gatewayCases()
	if len(cases) == 0 {
		return nil
	}
	flows := uint32(gatewayFlowsSmoke)
	for _, c := range cases {
		if !b.smoke {
			flows = max(flows, c.flows)
		}
	}
	line, err := newRateLine(ctx, w, router.Name, rates.cpus, flows)
	if err != nil {
		return err
	}
	rates.lines = append(rates.lines, line)
	agent := &node.Agent{Host: router, Program: b.program, Manifests: w.folder, EdgeMode: "off", Flags: []string{
		"--gateway-devices=eth0", "--gateway-provider=cache", "--gateway-threshold=1", fmt.Sprintf("--gateway-max-flows=%d", 8*flows)}}
	w.agents = append(w.agents, agent)
	if err := agent.Start(); err != nil {
		return err
	}
	rig := &gatewayRig{bench: b, line: line, router: router, bpffs: agent.BPFFS(), device: line.near, programs: map[ebpf.AttachType]*ebpf.Program{}}
	defer func() { err = errors.Join(err, rig.end()) }()
	sides := map[bool]*rateSide{
		false: {line: line, service: gatewayPlain, becomes: becomesNothing, begun: ruleCount(ctx, router, `ct state new counter packets (\d+) `, []string{"nft", "list", "chain", "ip", "gateway", "forward"})},
		true:  {line: line, set: 1, service: rateService, becomes: becomesSNAT, begun: ruleCount(ctx, router, `daddr \S+ counter packets (\d+) `, []string{"nft", "list", "chain", "ip", "gateway", "before"})},
	}
	for _, nat := range []bool{false, true} {
		if err := sides[nat].prove(ctx, gatewayPause); err != nil {
			return fmt.Errorf("%s: %w", gatewayNAT(nat), err)
		}
	}
	// The second time because the agent has given up the first flows if they were idle for long.
	for _, nat := range []bool{false, true, false} {
		if err := rig.learn(ctx, sides[nat]); err != nil {
			return fmt.Errorf("%s: %w", gatewayNAT(nat), err)
		}
	}
	if rig.redirect, err = loadTCYardsticks(router.Addr4); err != nil {
		return err
	}
	if err := errors.Join(agent.Stop(), rig.take()); err != nil {
		return err
	}
	return rig.measureAll(ctx, cases, sides)
}

func (rig *gatewayRig) end() error {
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
func (rig *gatewayRig) cached() (uint64, error) {
	packets, _, err := datapath.ReadGatewayCounters(rig.bpffs)
	return packets["cache"], err
}

// past is how many packets each side has forwarded past the stack.
func (rig *gatewayRig) past() (n [gatewayRedirect + 1]uint64, err error) {
	cached, err := rig.cached()
	n[gatewayCache] = cached
	return n, errors.Join(err, rig.redirect.Variables["redirected"].Get(&n[gatewayRedirect]))
}

// learn sends until the cache has the flows: packets of a few flows at a time, because one that has to share its place
// in the table of counts takes longer.
func (rig *gatewayRig) learn(ctx context.Context, s *rateSide) error {
	all := burst{set: s.frames(), packets: uint64(s.line.flows), like: s.like(), pace: time.Second / gatewayLearnRate}
	var taken uint64
	for end := time.Now().Add(gatewayLearnTime); time.Now().Before(end); {
		before, err := rig.cached()
		if err != nil {
			return err
		}
		if _, err := s.line.run(ctx, all); err != nil {
			return err
		}
		after, err := rig.cached()
		if err != nil {
			return err
		}
		if taken = after - before; float64(taken) >= gatewayLearned*float64(all.packets) {
			return nil
		}
		if err := s.sendFew(ctx, all); err != nil {
			return err
		}
	}
	packets, _, err := datapath.ReadGatewayCounters(rig.bpffs)
	return errors.Join(err, fmt.Errorf("the flow cache forwards %d of %d packets, one of each flow; all packets: %v", taken, all.packets, packets))
}

// sendFew sends packets of a few flows at a time.
func (s *rateSide) sendFew(ctx context.Context, all burst) error {
	for first := uint32(0); first < all.set.count; first += gatewayLearnFlows {
		few := all
		few.set.first += first
		few.set.count = min(gatewayLearnFlows, all.set.count-first)
		few.packets = gatewayLearnPackets * uint64(few.set.count)
		if _, err := s.line.run(ctx, few); err != nil {
			return err
		}
	}
	return nil
}

// take detaches the programs, and keeps them.
func (rig *gatewayRig) take() error {
	paths, err := filepath.Glob(filepath.Join(rig.bpffs, "links", datapath.GatewayComponent+"-*"))
	if err != nil || len(paths) == 0 {
		return errors.Join(err, errors.New("the gateway is at no device"))
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

func (rig *gatewayRig) attach(programs map[ebpf.AttachType]*ebpf.Program) error {
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

func (rig *gatewayRig) detach() (err error) {
	for _, l := range rig.links {
		err = errors.Join(err, l.Close())
	}
	rig.links = nil
	return err
}

func (rig *gatewayRig) measureAll(ctx context.Context, cases []gatewayPacketCase, sides map[bool]*rateSide) error {
	for round := range min(rig.bench.runs, 2*rateRounds) {
		for _, c := range cases {
			for _, side := range turns(round, c.sides()) {
				if err := rig.measure(ctx, c, sides[c.nat], side); err != nil {
					return fmt.Errorf("%s, %d flows, %s: %w", gatewayNAT(c.nat), c.flows, gatewayNames[side], err)
				}
			}
		}
	}
	return nil
}

// measure is a slice of packets on one side, and the proof of their path.
func (rig *gatewayRig) measure(ctx context.Context, c gatewayPacketCase, s *rateSide, side int) error {
	programs := map[ebpf.AttachType]*ebpf.Program{}
	switch side {
	case gatewayCache:
		programs = rig.programs
	case gatewayRedirect:
		programs[ebpf.AttachTCXIngress] = rig.redirect.Programs[RatesTCProgRatesTcRedirect]
	}
	if err := rig.attach(programs); err != nil {
		return err
	}
	defer rig.detach()
	slice := burst{set: s.frames().part(c.flows), packets: math.MaxInt64, limit: rateSlice, like: s.like()}
	if c.flows == gatewayFlows {
		slice.limit = gatewaySliceMany
	}
	if rig.bench.smoke {
		slice.limit = rateSliceSmoke
	}
	// The first moment loads programs and tables into the caches, and has each flow checked.
	warm := slice
	warm.packets, warm.limit = uint64(max(2*rateFlows, slice.set.count)), 0
	if _, err := s.line.run(ctx, warm); err != nil {
		return err
	}
	before, err := rig.past()
	if err != nil {
		return err
	}
	o, err := s.slice(ctx, slice)
	if err != nil {
		return err
	}
	after, err := rig.past()
	if err != nil {
		return err
	}
	want := map[int]float64{gatewayCache: gatewayLearned, gatewayRedirect: 1}
	for of := range after {
		taken := float64(after[of]-before[of]) / float64(o.sent)
		if of == side && taken < want[of] || of != side && taken > 0 {
			return fmt.Errorf("side %q has forwarded %.3g %% of %d packets", gatewayNames[of], 100*taken, o.sent)
		}
	}
	if o.strange > 0 {
		return fmt.Errorf("%d of %d packets were not translated", o.strange, o.sent)
	}
	gatewayRow(rig.bench.results, c.series, side, metricPacketCPU, float64(o.cpu.Nanoseconds())/float64(o.sent))
	return nil
}

// nftRun applies rules to a host.
func nftRun(ctx context.Context, host *lab.Host, rules string) error {
	cmd := host.Command(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("host %s: nft: %w: %s", host.Name, err, out)
	}
	return nil
}
