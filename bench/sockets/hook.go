// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

const partHook = "hook"

// Hook is the part hook.
var Hook = harness.Part{Name: partHook, Text: "what the programs at connect(2), sendmsg(2) and recvmsg(2) themselves cost", Run: runHook, Print: printHooks}

// metricCall is the cost of one program in one case, including the cost of counting.
var metricCall = result.Metric{Name: "time per call", Unit: "ns", Better: result.Lower}

// sideEmpty is the side with a program that does nothing.
const sideEmpty = "empty"

const (
	hookCalls  = 5000
	hookRounds = 11 // at most
)

func runHook(ctx context.Context, b *harness.Bench) (err error) {
	// The kernel counts the runs of all programs and their time while these statistics are enabled.
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return fmt.Errorf("have the kernel time its programs (Linux 5.8): %w", err)
	}
	defer stats.Close()
	sizes, calls := []int{10, harness.MostServices}, hookCalls
	if b.Smoke {
		sizes, calls = []int{10, 50}, 200
	}
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		for _, services := range sizes {
			if err := measureHooks(ctx, b, protocol, services, calls); err != nil {
				return fmt.Errorf("with %d Services of %s: %w", services, protocol, err)
			}
		}
	}
	return nil
}

// The pods that make the calls: on a node with an agent, and on one without.
const (
	hookedPod  = "a1"
	barePod    = "b1"
	ownService = 103 // the number of the Service that has hookedPod as its backend
)

// hookRig is one lab with an agent on node-a, and an empty program on node-b for comparison.
type hookRig struct {
	world *harness.World
	many  *harness.ServiceFolder
	agent *node.Agent
	cpu   int
}

func measureHooks(ctx context.Context, b *harness.Bench, protocol corev1.Protocol, services, calls int) (err error) {
	w, err := harness.NewWorld()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.End()) }()
	rig := &hookRig{world: w, cpu: b.One.Client}
	rig.many = &harness.ServiceFolder{Folder: w.Folder, Services: services, Endpoints: harness.EndpointsPerService, Families: harness.BothFamilies, Protocol: protocol}
	if err := rig.setUp(b, protocol); err != nil {
		return err
	}
	for _, h := range hooks {
		if h.protocol != protocol {
			continue
		}
		if err := rig.measure(ctx, b, h, calls); err != nil {
			return fmt.Errorf("%s: %w", h.name, err)
		}
	}
	return nil
}

func (rig *hookRig) setUp(b *harness.Bench, protocol corev1.Protocol) (err error) {
	if err := rig.many.Write(); err != nil {
		return err
	}
	if protocol == corev1.ProtocolUDP {
		err := rig.world.AddService("own", ownService, rig.world.Host(hookedPod),
			node.Port{Name: "udp", Protocol: protocol, Port: harness.ServicePort, Target: harness.ServerPort})
		if err != nil {
			return err
		}
	}
	for _, pod := range []string{hookedPod, barePod} {
		if err := unroute(rig.world.Host(pod)); err != nil {
			return err
		}
	}
	rig.agent, err = rig.world.StartAgent(b.Program, "node-a", "")
	return err
}

// measure runs the cases of a hook in turn.
func (rig *hookRig) measure(ctx context.Context, b *harness.Bench, h hook, calls int) error {
	program, err := programOf(rig.agent.BPFFS(), h.name)
	if err != nil {
		return err
	}
	defer program.Close()
	empty, detach, err := attachEmpty(rig.world.Host("node-b"), h.attach)
	if err != nil {
		return err
	}
	defer detach()
	cases := h.cases(rig, h)
	for _, c := range cases {
		c.program = program
		if c.bare {
			c.program = empty
		}
	}
	for range min(b.Runs, hookRounds) {
		for _, c := range cases {
			nanoseconds, err := c.run(ctx, rig, calls)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			row := result.Row{Metric: metricCall, Series: result.Series{Part: partHook, Scenario: c.name, Hook: h.name, Side: harness.SideBeeline,
				Family: h.family, Parameters: result.Parameters{"services": rig.many.Services}}}
			if c.bare {
				row.Side = sideEmpty
			}
			b.Results.Add(row, nanoseconds)
		}
	}
	return nil
}

// unroute makes the endpoints unreachable for a pod: a call runs its programs, and ends before the first
// packet.
func unroute(pod *lab.Host) error {
	nl, err := pod.Netlink()
	if err != nil {
		return err
	}
	defer nl.Close()
	for _, p := range harness.EndpointRange {
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

func programOf(bpffs, hook string) (*ebpf.Program, error) {
	attached, err := bpf.Attachments(bpffs, bpf.Socket(), bpf.SocketStats(nil))
	if err != nil {
		return nil, err
	}
	for _, a := range attached {
		if a.Hook == hook {
			return ebpf.NewProgramFromID(ebpf.ProgramID(a.ProgramID))
		}
	}
	return nil, fmt.Errorf("%s is not attached", hook)
}

// attachEmpty attaches a program that does nothing to the cgroup of a node.
func attachEmpty(host *lab.Host, attach ebpf.AttachType) (program *ebpf.Program, detach func(), err error) {
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

func printHooks(r *harness.Report) {
	r.Say("\nTime of the program for one call, as the kernel counts it, in ns; net of what the counting costs\n")
	r.Say("  %-9s %8s  %-40s %8s %16s %8s", "", "Services", "", "median", "least - most", "net")
	counting := 0.0
	for _, row := range r.Results.Of(partHook, metricCall) {
		median := stat.Median(row.Samples)
		if row.Side == sideEmpty {
			counting = median
		}
		r.Say("  %-9s %8d  %-40s %8.0f %8.0f - %5.0f %8.0f", row.Hook, row.Parameters["services"], row.Scenario,
			median, stat.Quantile(row.Samples, 0), stat.Quantile(row.Samples, 1), median-counting)
	}
}
