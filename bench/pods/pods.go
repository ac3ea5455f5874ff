// SPDX-License-Identifier: Apache-2.0

// Package pods measures traffic between pods, through the stack and past it.
package pods

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
	"beeline.io/beeline/internal/shortcut/pod"
	"beeline.io/beeline/test/lab"
)

const partName = "pods"

// Part is the part pods.
var Part = harness.Part{Name: partName, Text: "traffic between pods through the stack and past it", Run: runPods, Print: printPods}

// The sides: the same traffic through the stack of the nodes, and past it. The second is the first again: their
// difference is what the measurement cannot see. The last one shows what of the shortcut's time is
// its decisions.
const (
	stack = iota
	stackAgain
	shortcut
	onlyRedirect // bench/pods/pods_redirect.bpf.c
	sides
)

var podsNames = [sides]string{"stack", "stack (A/A)", "shortcut", "only redirect"}

// podsCase is a kind of traffic between two pods, on nodes whose forward chain has kubeRules and so many more.
type podsCase struct {
	mode        endpoint.Mode
	family      string
	path        string // "local": between pods of a node; "remote": of two nodes
	connections int
	rules       int
}

func (c podsCase) String() string {
	return fmt.Sprintf("%s, %s, %s, %d at a time, %d rules", c.mode, c.family, c.path, c.connections, c.rules)
}

func cases() (all []podsCase) {
	for _, rules := range []int{0, 1000} {
		for _, path := range []string{"local", "remote"} {
			all = append(all,
				podsCase{endpoint.RequestResponse, "IPv4", path, 1, rules},
				podsCase{endpoint.RequestResponse, "IPv4", path, 64, rules},
				podsCase{endpoint.RequestResponse, "IPv6", path, 1, rules},
				podsCase{endpoint.ConnectRequestClose, "IPv4", path, 1, rules},
				podsCase{endpoint.UDPConnected, "IPv4", path, 1, rules},
				podsCase{endpoint.Stream, "IPv4", path, 1, rules})
		}
	}
	return all
}

// servers are the pods that a1 talks to, by the path.
var servers = map[string]string{"local": "a2", "remote": "b1"}

// podsRig is a cluster whose nodes had agents: so the benchmark alone attaches and detaches the programs.
type podsRig struct {
	world   *harness.World
	nodes   []*podsNode
	softirq []int
}

// podsNode is a node, and the places of the program there.
type podsNode struct {
	host    *lab.Host
	bpffs   string
	program *ebpf.Program
	devices []int
}

func runPods(ctx context.Context, b *harness.Bench) (err error) {
	w, err := harness.NewWorld()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.End()) }()
	rig := &podsRig{world: w, softirq: harness.SoftirqThreads()}
	for _, pod := range servers {
		if err := w.StartServer(ctx, pod, b.Two.Server); err != nil {
			return err
		}
	}
	for _, host := range []string{"node-a", "node-b"} {
		n, err := rig.prepare(b.Program, host)
		if err != nil {
			return fmt.Errorf("%s: %w", host, err)
		}
		defer n.program.Close()
		rig.nodes = append(rig.nodes, n)
	}
	for _, c := range cases() {
		if b.Only != nil && !b.Only.MatchString(c.String()) {
			continue
		}
		if err := rig.measure(ctx, b, c); err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
	}
	return nil
}

// prepare has an agent fill the tables of a node, and takes the program from its devices.
func (rig *podsRig) prepare(program, host string) (*podsNode, error) {
	agent, err := rig.world.StartAgent(program, host, "", "--pod-devices=auto", "--pod-ignore-filters")
	if err != nil {
		return nil, err
	}
	n := &podsNode{host: agent.Host, bpffs: agent.BPFFS()}
	if err := agent.Stop(); err != nil {
		return nil, err
	}
	paths, err := filepath.Glob(filepath.Join(n.bpffs, "links", pod.ComponentName+"-*"))
	if err != nil || len(paths) == 0 {
		return nil, errors.Join(err, errors.New("the pod shortcut is at no device"))
	}
	for _, path := range paths {
		if err := n.take(path); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// take detaches a link, and notes its device and program.
func (n *podsNode) take(path string) error {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return err
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return err
	}
	if n.program == nil {
		if n.program, err = ebpf.NewProgramFromID(info.Program); err != nil {
			return err
		}
	}
	n.devices = append(n.devices, int(info.TCX().Ifindex))
	return errors.Join(l.Detach(), l.Unpin())
}

// attach attaches the program to all devices of the node.
func (n *podsNode) attach() (detach func() error, err error) {
	var links []link.Link
	detach = func() error { return harness.CloseAll(links) }
	err = n.host.Do(func() error {
		for _, device := range n.devices {
			l, err := link.AttachTCX(link.TCXOptions{Interface: device, Program: n.program, Attach: ebpf.AttachTCXIngress})
			if err != nil {
				return err
			}
			links = append(links, l)
		}
		return nil
	})
	return detach, err
}

// shortcuts is how many packets took the shortcut.
func (n *podsNode) shortcuts() (sum uint64, err error) {
	counters, err := pod.ReadCounters(n.bpffs)
	for path, packets := range counters {
		if strings.HasPrefix(path, "path_") {
			sum += packets
		}
	}
	return sum, err
}

// measure runs the sides in turn.
func (rig *podsRig) measure(ctx context.Context, b *harness.Bench, c podsCase) error {
	for _, n := range rig.nodes {
		if err := n.setRules(ctx, c.rules); err != nil {
			return err
		}
	}
	cpus := harness.PairOf(b.Results.Settings, c.connections)
	if err := rig.world.Servers[servers[c.path]].Pin(cpus.Server); err != nil {
		return err
	}
	return harness.InTurns(b.Runs, podsNames[:], func(side int) error {
		slice, err := rig.slice(ctx, b, c, side, cpus.Client)
		if err == nil {
			harness.AddTraffic(b.Results, podsNames[stack], c.series(side), slice, harness.MetricP10, harness.MetricP50, harness.MetricRate, harness.MetricCPU)
		}
		return err
	})
}

// slice is a short time of traffic on one side, and the proof of its path. Flows in the kernel's conntrack, which would
// stay on the stack, are deleted first.
func (rig *podsRig) slice(ctx context.Context, b *harness.Bench, c podsCase, side, cpu int) (r endpoint.Result, err error) {
	server := servers[c.path]
	config := endpoint.ClientConfig{
		Mode: c.mode, Target: netip.AddrPortFrom(harness.AddressOf(rig.world.Host(server), c.family), harness.ServerPort), Connections: c.connections,
		Warmup: b.Slice / 10, Measure: b.Slice, CPU: cpu, Processes: append([]int{rig.world.Servers[server].PID()}, rig.softirq...),
	}
	var before, after uint64
	var redirect *podsRedirect
	if side == onlyRedirect {
		redirect, err = redirectBetween(rig.world.Lab, [2]string{"a1", server})
		defer func() { err = errors.Join(err, redirect.close()) }()
		if err != nil {
			return r, err
		}
	}
	for _, n := range rig.nodes {
		if err := n.host.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }); err != nil {
			return r, fmt.Errorf("flush the kernel's conntrack: %w", err)
		}
		packets, err := n.shortcuts()
		if err != nil {
			return r, err
		}
		before += packets
		if side == shortcut {
			detach, err := n.attach()
			defer detach()
			if err != nil {
				return r, err
			}
		}
	}
	if r, err = endpoint.RunClient(ctx, rig.world.Host("a1"), config); err != nil {
		return r, err
	}
	for _, n := range rig.nodes {
		packets, err := n.shortcuts()
		if err != nil {
			return r, err
		}
		after += packets
	}
	if redirect != nil {
		if n, err := redirect.packets(); err != nil || n < r.Operations && c.mode != endpoint.Stream || n == 0 {
			return r, errors.Join(err, fmt.Errorf("%d packets were redirected, of %d operations", n, r.Operations))
		}
	}
	if taken := after - before; r.Operations == 0 || (taken >= r.Operations) != (side == shortcut) && c.mode != endpoint.Stream || (taken > 0) != (side == shortcut) {
		return r, fmt.Errorf("%d packets took the shortcut, of %d operations", taken, r.Operations)
	}
	return r, nil
}

func (c podsCase) series(side int) result.Series {
	return result.Series{Part: partName, Scenario: fmt.Sprintf("%s, %s", c.mode, c.path), Side: podsNames[side],
		Family: c.family, Parameters: result.Parameters{"connections": c.connections, "rules": c.rules}}
}

func printPods(r *harness.Report) {
	r.Say("\nBetween two pods, of one node (local) or of two (remote), through the nodes' stack, past it, and past it by a program that only redirects, with netfilter rules as kube-proxy and flannel make them, and 0 or 1,000 rules of a policy. "+
		"Ratios to the stack, median of %d paired slices [95 %% interval]; of a stream an operation is %d KiB", r.Results.Settings.Runs, endpoint.StreamWrite>>10)
	for _, c := range cases() {
		if len(r.Results.Samples(c.series(stack), harness.MetricRate)) == 0 {
			continue
		}
		r.Say("  %s: stack %.0f per second, %.1f us of CPU time each", c, stat.Median(r.Results.Samples(c.series(stack), harness.MetricRate)),
			stat.Median(r.Results.Samples(c.series(stack), harness.MetricCPU)))
		for _, side := range []int{stackAgain, shortcut, onlyRedirect} {
			r.Say("    %-13s%s", podsNames[side], r.Ratios(c.series(side), c.series(stack), harness.MetricP50, harness.MetricRate, harness.MetricCPU))
		}
	}
}
