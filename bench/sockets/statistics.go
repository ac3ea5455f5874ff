// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/node"
)

const partStatistics = "statistics"

// Statistics is the part statistics.
var Statistics = harness.Part{Name: partStatistics, Text: "what it costs to count connections at sockets", Run: runStatistics, Print: printStatistics}

// The sides: the same connections while the program that counts them is attached, and while it is not. The second is
// the first again: their difference is what the measurement cannot see.
const (
	statisticsOff = iota
	statisticsOffAgain
	statisticsOn
	directOff
	directOn
	statisticsSides
)

var statisticsNames = [statisticsSides]string{
	"ClusterIP, not counted", "ClusterIP, not counted (A/A)", "ClusterIP, counted", "direct, program not attached", "direct, program attached",
}

// The printed ratios: a side, and the side that it is divided by.
var statisticsPairs = []struct{ side, by int }{
	{statisticsOffAgain, statisticsOff}, {statisticsOn, statisticsOff}, {directOn, directOff},
}

// statisticsRig is a cluster whose node-a had an agent: so the benchmark alone attaches and detaches the program.
type statisticsRig struct {
	world   *harness.World
	bpffs   string
	program *ebpf.Program
	softirq []int
}

func runStatistics(ctx context.Context, b *harness.Bench) (err error) {
	w, err := harness.NewWorld()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.End()) }()
	rig := &statisticsRig{world: w, softirq: harness.SoftirqThreads()}
	if err := rig.setUp(ctx, b); err != nil {
		return err
	}
	defer rig.program.Close()
	for _, connections := range []int{1, 64} {
		if err := rig.measure(ctx, b, connections); err != nil {
			return fmt.Errorf("%d connections at a time: %w", connections, err)
		}
	}
	return nil
}

func (rig *statisticsRig) setUp(ctx context.Context, b *harness.Bench) error {
	w := rig.world
	if err := node.WriteManifest(w.Folder, "services.yaml", socketObjects(w, fewServices)...); err != nil {
		return err
	}
	if err := w.StartServer(ctx, backends["local"].server, b.Two.Server); err != nil {
		return err
	}
	agent, err := w.StartAgent(b.Program, "node-a", "")
	if err != nil {
		return err
	}
	rig.bpffs = agent.BPFFS()
	if err := agent.Stop(); err != nil {
		return err
	}
	const hook = "sock_stats"
	if rig.program, err = programOf(rig.bpffs, hook); err != nil {
		return err
	}
	attached, err := link.LoadPinnedLink(filepath.Join(rig.bpffs, "links", hook), nil)
	if err != nil {
		return err
	}
	return errors.Join(attached.Detach(), attached.Unpin(), attached.Close())
}

// measure runs the sides in turn.
func (rig *statisticsRig) measure(ctx context.Context, b *harness.Bench, connections int) error {
	cpus := harness.PairOf(b.Results.Settings, connections)
	if err := rig.world.Servers[backends["local"].server].Pin(cpus.Server); err != nil {
		return err
	}
	return harness.InTurns(b.Runs, statisticsNames[:], func(side int) error {
		slice, err := rig.slice(ctx, b, side, connections, cpus.Client)
		if err == nil {
			rig.add(b.Results, side, connections, slice)
		}
		return err
	})
}

// slice is a short time of traffic on one side, and the proof that its connections were counted, or not.
func (rig *statisticsRig) slice(ctx context.Context, b *harness.Bench, side, connections, cpu int) (r endpoint.Result, err error) {
	w, server := rig.world, backends["local"].server
	config := endpoint.ClientConfig{
		Mode: endpoint.ConnectRequestClose, Target: serviceOf(server, "IPv4"), Connections: connections,
		Warmup: b.Slice / 10, Measure: b.Slice, CPU: cpu, Processes: append([]int{w.Servers[server].PID()}, rig.softirq...),
	}
	if side == directOff || side == directOn {
		config.Target = netip.AddrPortFrom(w.Host(server).Addr4, harness.ServerPort)
	}
	if side == statisticsOn || side == directOn {
		l, err := link.AttachCgroup(link.CgroupOptions{Path: w.Host("node-a").CgroupRoot, Attach: ebpf.AttachCGroupSockOps, Program: rig.program})
		if err != nil {
			return r, err
		}
		// Closing alone detaches it later.
		defer func() { err = errors.Join(err, l.Detach(), l.Close()) }()
	}
	before, err := rig.started()
	if err != nil {
		return r, err
	}
	if r, err = endpoint.RunClient(ctx, w.Host("a1"), config); err != nil {
		return r, err
	}
	after, err := rig.started()
	want := uint64(0)
	if side == statisticsOn {
		want = r.Connected
	}
	if err == nil && (after-before != want || r.Operations == 0) {
		err = fmt.Errorf("%d of %d connections were counted, want %d", after-before, r.Connected, want)
	}
	return r, err
}

// started is the number of connections that were counted.
func (rig *statisticsRig) started() (n uint64, err error) {
	stats, err := bpf.ReadSocketStats(rig.bpffs)
	if err != nil {
		return 0, err
	}
	for _, s := range stats.Services {
		n += s.Started
	}
	return n, nil
}

func statisticsSeries(side, connections int) result.Series {
	return result.Series{Part: partStatistics, Scenario: string(endpoint.ConnectRequestClose) + ", local backend", Side: statisticsNames[side],
		Family: "IPv4", Parameters: result.Parameters{"connections": connections}}
}

func (rig *statisticsRig) add(results *result.File, side, connections int, r endpoint.Result) {
	first := statisticsNames[side]
	for _, p := range statisticsPairs {
		if p.side == side {
			first = statisticsNames[p.by]
		}
	}
	harness.AddTraffic(results, first, statisticsSeries(side, connections), r, harness.MetricP10, harness.MetricP50, harness.MetricRate, harness.MetricCPU)
}

func printStatistics(r *harness.Report) {
	for _, connections := range []int{1, 64} {
		r.Say("\nConnect, request, close through a ClusterIP to a local backend, IPv4, %d at a time; ratios are medians of %d paired slices [95 %% interval]",
			connections, r.Results.Settings.Runs)
		for side, name := range statisticsNames {
			line := fmt.Sprintf("  %-32s", name)
			for _, m := range ratioMetrics {
				line += fmt.Sprintf(" %s %10.1f %s", m.Name, stat.Median(r.Results.Samples(statisticsSeries(side, connections), m)), m.Unit)
			}
			r.Say("%s", line)
		}
		for _, p := range statisticsPairs {
			r.Say("  %s / %s:%s", statisticsNames[p.side], statisticsNames[p.by],
				r.Ratios(statisticsSeries(p.side, connections), statisticsSeries(p.by, connections), ratioMetrics...))
		}
	}
}
