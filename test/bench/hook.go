// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/test/bench/endpoint"
	"beeline.io/beeline/test/bench/stat"
	"beeline.io/beeline/test/lab"
)

// hookResult is what one program costs in one case, in ns per run.
type hookResult struct {
	Program  string    `json:"program"` // "connect4" or "connect6"
	Case     string    `json:"case"`
	Services int       `json:"services"` // in the tables
	Samples  []float64 `json:"samples"`
}

const (
	caseEmpty   = "an empty program"
	casePlain   = "not a Service"
	caseOne     = "one Service, again and again"
	caseAll     = "all Services in random order"
	hookCalls   = 5000
	hookRounds  = 11 // at most
	manyMost    = 5000
	endpointsOf = 10
)

// The programs by family.
var hookOf = map[string]string{"IPv4": "connect4", "IPv6": "connect6"}

var bothFamilies = []string{"IPv4", "IPv6"}

func runHook(ctx context.Context, b *bench) (err error) {
	// The kernel counts the runs of all programs and their time, for as long
	// as somebody asks for it.
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return fmt.Errorf("have the kernel time its programs (Linux 5.8): %w", err)
	}
	defer stats.Close()
	sizes, calls := []int{10, manyMost}, hookCalls
	if b.smoke {
		sizes, calls = []int{10, 50}, 200
	}
	for _, services := range sizes {
		if err := measureHooks(ctx, b, services, calls); err != nil {
			return fmt.Errorf("with %d Services: %w", services, err)
		}
	}
	printHooks(b)
	return nil
}

// measureHooks is one lab with an agent on node-a, and an empty program on
// node-b to compare with.
func measureHooks(ctx context.Context, b *bench, services, calls int) (err error) {
	w, err := newWorld()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.end()) }()
	m := &many{folder: w.folder, services: services, endpoints: endpointsOf, families: bothFamilies}
	if err := m.write(); err != nil {
		return err
	}
	for _, pod := range []string{"a1", "b1"} {
		if err := unroute(w.Host(pod)); err != nil {
			return err
		}
	}
	agent, err := w.startAgent(b.program, "node-a")
	if err != nil {
		return err
	}
	attached, err := datapath.Attachments(agent.BPFFS())
	if err != nil {
		return err
	}
	for _, family := range bothFamilies {
		program, err := programOf(attached, hookOf[family])
		if err != nil {
			return err
		}
		defer program.Close()
		empty, detach, err := attachEmpty(w.Host("node-b"), family)
		if err != nil {
			return err
		}
		defer detach()
		cases := hookCases(w, m, family, program, empty)
		if err := measureHook(ctx, b, cases, calls); err != nil {
			return err
		}
		for _, c := range cases {
			b.results.Hook = append(b.results.Hook, hookResult{hookOf[family], c.name, services, c.samples})
		}
	}
	return nil
}

// A hookCase is calls from a pod, and the program that they run through.
type hookCase struct {
	name    string
	world   *world
	client  *lab.Host
	program *ebpf.Program
	targets []netip.AddrPort
	path    path
	samples []float64
}

func hookCases(w *world, m *many, family string, program, empty *ebpf.Program) []*hookCase {
	plain := []netip.AddrPort{netip.AddrPortFrom(m.endpoint(family, 0, 0), 8080)}
	var all []netip.AddrPort
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(m.services) {
		all = append(all, m.address(family, i))
	}
	cases := []*hookCase{
		{name: caseEmpty, client: w.Host("b1"), program: empty, targets: plain, path: unhooked},
		{name: casePlain, client: w.Host("a1"), program: program, targets: plain, path: passed},
		{name: caseOne, client: w.Host("a1"), program: program, targets: all[:1], path: balanced},
		{name: caseAll, client: w.Host("a1"), program: program, targets: all, path: balanced},
	}
	for _, c := range cases {
		c.world = w
	}
	return cases
}

// measureHook lets the cases take turns.
func measureHook(ctx context.Context, b *bench, cases []*hookCase, calls int) error {
	for range min(b.runs, hookRounds) {
		for _, c := range cases {
			if err := c.run(ctx, b, calls); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	return nil
}

// run makes calls, and proves that each of them ran the program once.
func (c *hookCase) run(ctx context.Context, b *bench, calls int) error {
	counters, err := c.world.counters()
	if err != nil {
		return err
	}
	before, err := c.program.Stats()
	if err != nil {
		return err
	}
	err = endpoint.RunCaller(ctx, c.client, endpoint.CallerConfig{Targets: c.targets, Calls: calls, CPU: b.one.Client})
	if err != nil {
		return err
	}
	after, err := c.program.Stats()
	if err != nil {
		return err
	}
	if runs := after.RunCount - before.RunCount; runs != uint64(calls) {
		return fmt.Errorf("%d calls ran the program %d times", calls, runs)
	}
	c.samples = append(c.samples, float64((after.Runtime-before.Runtime).Nanoseconds())/float64(calls))
	now, err := c.world.counters()
	if err != nil {
		return err
	}
	return prove(counters, now, c.path, uint64(calls))
}

// unroute lets a pod find no way to the endpoints: connect(2) runs its programs,
// and ends before the first packet.
func unroute(pod *lab.Host) error {
	nl, err := pod.Netlink()
	if err != nil {
		return err
	}
	defer nl.Close()
	for _, p := range endpointRange {
		err := nl.RouteAdd(&netlink.Route{
			Dst:  &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
			Type: unix.RTN_UNREACHABLE,
		})
		if err != nil {
			return fmt.Errorf("pod %s: an unreachable route to %s: %w", pod.Name, p, err)
		}
	}
	return nil
}

func programOf(attached []datapath.Attachment, hook string) (*ebpf.Program, error) {
	for _, a := range attached {
		if a.Hook == hook {
			return ebpf.NewProgramFromID(ebpf.ProgramID(a.ProgramID))
		}
	}
	return nil, fmt.Errorf("%s is not attached", hook)
}

// attachEmpty attaches a program that does nothing to the cgroup of a node.
func attachEmpty(host *lab.Host, family string) (program *ebpf.Program, detach func(), err error) {
	attach := ebpf.AttachCGroupInet4Connect
	if family == "IPv6" {
		attach = ebpf.AttachCGroupInet6Connect
	}
	program, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "empty", Type: ebpf.CGroupSockAddr, AttachType: attach, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	if err != nil {
		return nil, nil, err
	}
	l, err := link.AttachCgroup(link.CgroupOptions{Path: host.CgroupRoot, Attach: attach, Program: program})
	if err != nil {
		program.Close()
		return nil, nil, err
	}
	return program, func() { l.Close(); program.Close() }, nil
}

func printHooks(b *bench) {
	b.say("\nTime of the program for one connect(2), as the kernel counts it, in ns; net of what the counting costs\n")
	b.say("  %-9s %8s  %-40s %8s %16s %8s", "", "Services", "", "median", "least - most", "net")
	counting := 0.0
	for _, r := range b.results.Hook {
		median := stat.Median(r.Samples)
		if r.Case == caseEmpty {
			counting = median // the first of each four
		}
		b.say("  %-9s %8d  %-40s %8.0f %8.0f - %5.0f %8.0f", r.Program, r.Services, r.Case,
			median, stat.Quantile(r.Samples, 0), stat.Quantile(r.Samples, 1), median-counting)
	}
}
