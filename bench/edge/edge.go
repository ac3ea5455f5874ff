// SPDX-License-Identifier: Apache-2.0

// Package edge times the programs at devices for a packet.
package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
	"beeline.io/beeline/bench/testrun"
)

// PartName is the name of the part.
const PartName = "edge"

// Part is the part, with programs of others.
func Part(peers []*Peer) harness.Part {
	run := func(ctx context.Context, b *harness.Bench) error { return runEdge(ctx, b, peers) }
	return harness.Part{Name: PartName, Text: "what the programs at devices cost for each packet", Run: run, Print: printEdge}
}

// metricPacket is the cost of one program in one case, net of the prelude.
var metricPacket = result.Metric{Name: "time per packet", Unit: "ns", Better: result.Lower}

// The sides of each case besides harness.SideBeeline.
const (
	sideMinimal = "minimal"
	sideRecords = "minimal with records" // besides sideMinimal
)

// The numbers of flows, and of packets in one sample.
const (
	someFlows   = 10_000
	manyFlows   = 300_000
	mostFlows   = 1_000_000
	fewestOfAll = 50_000
	somePackets = 100_000
	manyPackets = 250_000
	onePackets  = 20_000 // each in a run of its own
	edgeRounds  = 9      // at most
	// For a flow with two records, with the additional entry for unreplied ones, and its frames in four
	// sets.
	bytesForFlow = 2*230*5/4 + 4*80
	memoryPart   = 8 // of the machine's memory, at most
)

// edgeSize is a number of flows in a lab of its own.
type edgeSize struct {
	flows   uint32
	few     uint32 // flows of the cases without many; 0: there are no such cases
	records uint32 // --max-flows; 0: the default
	counts  []uint32
	packets uint32 // of one sample
	most    bool

	direct   bool     // the cases of DSR, and its Services
	families []string // none: both
}

func (size edgeSize) cases() []edgeCase {
	if size.direct {
		return directCases
	}
	return edgeCases
}

// fills reports whether so many new flows are a row: to measure a full table, they must fill it.
func (size edgeSize) fills(flows uint32) bool {
	return flows > 1 && (!size.most || flows == size.counts[len(size.counts)-1])
}

func edgeSizes(b *harness.Bench) []edgeSize {
	if b.Smoke {
		return []edgeSize{
			{flows: 100, counts: []uint32{1, 100}, packets: 200},
			{flows: 2000, records: 4400, counts: []uint32{2000}, packets: 400, most: true},
			{flows: 2000, few: 100, records: 4400, counts: []uint32{1, 100, 2000}, packets: 400, direct: true, families: onlyIPv4},
			{flows: 100, few: 100, counts: []uint32{1, 100}, packets: 200, direct: true, families: onlyIPv6},
		}
	}
	few := edgeSize{flows: someFlows, counts: []uint32{1, someFlows}, packets: somePackets}
	sizes := []edgeSize{few}
	most := uint32(min(mostFlows, b.Results.Machine.MemoryMiB<<20/memoryPart/bytesForFlow))
	if most < fewestOfAll {
		b.Say("There is too little memory for more than %d flows.", someFlows)
		return sizes
	}
	sizes = append(sizes, edgeSize{flows: most, records: most / 10 * 22, counts: []uint32{most}, packets: manyPackets, most: true})
	// Flows with DSR have one record each.
	direct := edgeSize{flows: most, few: someFlows, records: most / 10 * 12, counts: []uint32{1, someFlows, most}, packets: manyPackets,
		direct: true, families: onlyIPv4}
	if most > manyFlows {
		sizes[1].counts = []uint32{manyFlows, most}
		direct.counts = []uint32{1, someFlows, manyFlows, most}
	}
	few.direct, few.few, few.families = true, someFlows, onlyIPv6
	return append(sizes, direct, few)
}

// wanted reports whether to measure a row, by --case, which matches the printed row.
func wanted(b *harness.Bench, hook, family, name string, flows uint32) bool {
	return b.Only == nil || b.Only.MatchString(fmt.Sprintf("%s %s %s %d", hook, family, name, flows))
}

// wantedAt reports whether to measure any row of a case.
func wantedAt(b *harness.Bench, size edgeSize, family string, c edgeCase) bool {
	return slices.ContainsFunc(c.hooks, func(hook string) bool {
		return slices.ContainsFunc(size.counts, func(flows uint32) bool { return wanted(b, hook, family, c.name, flows) })
	})
}

// among reports whether a family is in a list; all are in an empty one.
func among(families []string, family string) bool {
	return len(families) == 0 || slices.Contains(families, family)
}

func runEdge(ctx context.Context, b *harness.Bench, peers []*Peer) error {
	if err := runPeers(ctx, b, peers); err != nil {
		return err
	}
	for _, size := range edgeSizes(b) {
		for _, family := range harness.BothFamilies {
			if !among(size.families, family) {
				continue
			}
			if err := measure(ctx, b, family, size); err != nil {
				return fmt.Errorf("%s, %d flows: %w", family, size.flows, err)
			}
		}
	}
	return nil
}

func measure(ctx context.Context, b *harness.Bench, family string, size edgeSize) (err error) {
	var sets []string
	var cases []edgeCase
	for _, c := range size.cases() {
		if (c.many || !size.most) && among(c.families, family) && wantedAt(b, size, family, c) {
			cases, sets = append(cases, c), append(sets, c.set)
		}
	}
	if len(cases) == 0 {
		return nil
	}
	// The yardstick gets frames of the one; replies belong to flows that another set begins.
	sets = append(sets, remoteSet(size.direct))
	if slices.Contains(sets, setLocalAnswer) {
		sets = append(sets, setLocal)
	}
	sets = slices.Compact(slices.Sorted(slices.Values(sets)))
	// Replies are known once the flows exist.
	slices.SortStableFunc(sets, func(a, b string) int { return later(a) - later(b) })
	rig, err := newRig(ctx, b, family, size, frameRoom(uint32(len(sets)), size.flows))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rig.end()) }()
	return rig.world.Host("node-a").Do(func() error {
		free, err := pin(b.One.Client)
		if err != nil {
			return err
		}
		defer free()
		for _, set := range sets {
			flows := size.flows
			if size.few > 0 && !slices.ContainsFunc(cases, func(c edgeCase) bool { return c.set == set && c.many }) {
				flows = size.few
			}
			if err := rig.make(flows, set); err != nil {
				return err
			}
		}
		for _, c := range cases {
			for _, hook := range c.hooks {
				for _, flows := range size.counts {
					if c.fresh && !size.fills(flows) || flows > rig.sets[c.set].Count || !wanted(b, hook, family, c.name, flows) {
						continue
					}
					if err := rig.measure(ctx, b, hook, c, flows, size); err != nil {
						return fmt.Errorf("%s, %s, %d flows: %w", hook, c.name, flows, err)
					}
				}
			}
		}
		return nil
	})
}

func later(set string) int {
	if set == setReplies {
		return 1
	}
	return 0
}

// pin keeps the calling thread on one CPU until its result is called.
func pin(cpu int) (free func(), err error) {
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return nil, err
	}
	one.Set(cpu)
	return func() { unix.SchedSetaffinity(0, &before) }, unix.SchedSetaffinity(0, &one)
}

// measure runs the edge and the yardstick in turn, each after the prelude alone on the same frames.
func (rig *edgeRig) measure(ctx context.Context, b *harness.Bench, hook string, c edgeCase, flows uint32, size edgeSize) error {
	set := rig.sets[c.set].Part(flows)
	yard := set
	if c.translated() {
		yard = rig.sets[remoteSet(rig.direct)].Part(flows)
	}
	packets := size.packets
	if c.resized() {
		set.Resized, yard.Resized = true, true
		if hook != hookXDP {
			packets = min(packets, onePackets)
			stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
			if err != nil {
				return fmt.Errorf("count the time of programs: %w", err)
			}
			defer stats.Close()
		}
	}
	if err := rig.startOver(c); err != nil {
		return err
	}
	if err := rig.prove(hook, c, set, yard); err != nil {
		return err
	}
	row := func(scenario, side, against string) result.Row {
		return result.Row{Metric: metricPacket, Against: against, Series: result.Series{Part: PartName, Scenario: scenario, Hook: hook, Side: side,
			Family: rig.family, Parameters: result.Parameters{"flows": int(flows)}}}
	}
	rounds := min(b.Runs, edgeRounds) + 1
	next := uint32(0)
	if c.fresh {
		packets = flows // each is new only once
	}
	if c.fresh && size.most {
		// The table is full, and contains none of the flows.
		if err := rig.startOver(c); err != nil {
			return err
		}
		next, packets = flows/10*3, flows/10*7/uint32(rounds)
		if _, _, _, err := rig.drivers[hook].run(targetEdge, set, 0, next); err != nil {
			return err
		}
	}
	for round := range rounds {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !size.most {
			if err := rig.startOver(c); err != nil {
				return err
			}
		}
		at := next
		next += packets
		net, err := rig.sample(hook, targetEdge, c.reason, set, at, packets)
		if err != nil {
			return err
		}
		minimal, err := rig.sample(hook, targetMinimal, "", yard, at, packets)
		if err != nil {
			return err
		}
		if round > 0 { // the first one is the warm-up
			b.Results.Add(row(c.name, harness.SideBeeline, sideMinimal), net)
			b.Results.Add(row(c.name, sideMinimal, ""), minimal)
		}
		if !rig.records(hook, c) {
			continue
		}
		records, err := rig.sample(hook, targetRecords, "", yard, at, packets)
		if err != nil {
			return err
		}
		if round > 0 {
			b.Results.Add(row(sideRecords, sideRecords, sideMinimal), records)
			b.Results.Add(row(sideRecords, sideMinimal, ""), minimal)
		}
	}
	return nil
}

// startOver makes the case's flows new again.
func (rig *edgeRig) startOver(c edgeCase) error {
	if !c.fresh {
		return nil
	}
	return rig.forget()
}

// sample is the cost of a program over none. If a reason is given, every packet must be counted by it.
func (rig *edgeRig) sample(hook string, t target, reason string, set testrun.FrameSet, next, packets uint32) (float64, error) {
	_, _, nothing, err := rig.drivers[hook].run(targetNothing, set, next, packets)
	if err != nil {
		return 0, err
	}
	before, err := rig.counts()
	if err != nil {
		return 0, err
	}
	_, _, all, err := rig.drivers[hook].run(t, set, next, packets)
	if err != nil {
		return 0, err
	}
	want := map[string]uint64{}
	if reason != "" {
		want[reason] = uint64(packets)
	}
	return all - nothing, rig.counted(before, want)
}

func printEdge(r *harness.Report) {
	r.Say("\nTime of the edge's programs for one packet, in ns net of what drives them; beside it the least that a load balancer does\n")
	r.Say("  %-10s %-4s  %-28s %8s %8s %15s %8s %6s", "", "", "", "flows", "median", "least - most", "minimal", "ratio")
	for _, row := range rows(r.Results) {
		net, minimal := stat.Median(row.Samples), stat.Median(r.Results.Counterpart(row))
		r.Say("  %-10s %-4s  %-28s %8d %8.0f %6.0f - %6.0f %8.0f %6.1f", row.Hook, row.Family, row.Scenario, row.Parameters["flows"],
			net, stat.Quantile(row.Samples, 0), stat.Quantile(row.Samples, 1), minimal, net/minimal)
	}
}

// rows are Beeline's, by hook, family and case, each followed by the peers'.
func rows(results *result.File) []result.Row {
	all := slices.DeleteFunc(results.Of(PartName, metricPacket), func(r result.Row) bool { return r.Side == sideMinimal })
	cases := map[string]int{}
	for i, c := range slices.Concat(edgeCases, directCases) {
		if _, known := cases[c.name]; !known {
			cases[c.name] = i
		}
	}
	place := func(r result.Row) int {
		if place, known := cases[r.Scenario]; known {
			return place
		}
		return len(edgeCases) + len(directCases)
	}
	hooks := []string{hookXDP, hookIngress, hookEgress, hookTC}
	slices.SortStableFunc(all, func(a, b result.Row) int {
		return cmp.Or(slices.Index(hooks, a.Hook)-slices.Index(hooks, b.Hook), cmp.Compare(a.Family, b.Family), place(a)-place(b))
	})
	return all
}
