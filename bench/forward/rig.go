// SPDX-License-Identifier: Apache-2.0

// Package forward sends packets from a client through a balancer to a receiver: by Beeline, by minimal programs, by
// netfilter, kube-proxy and IPVS.
package forward

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/controlplane"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types -type likeness -type kept Rates rates.bpf.c -- -I../bpf
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types RatesTC rates_tc.bpf.c -- -I../bpf

// A Rig is the labs of all sides, which exist at the same time to take turns. Each node of a lab is a
// balancer.
type Rig struct {
	Bench  *harness.Bench
	CPUs   result.CPUPair // of client and receiver, and of the balancer
	worlds []*harness.World
	Lines  []*Line
	Sides  []*Side
	open   []func() error
}

// Sides that others are compared with.
const (
	sideSink            = "sink only"
	SideMinimalXDP      = "minimal, XDP_TX"
	SideMinimalRecords  = "minimal with records, XDP_TX"
	SideMinimalTunnel   = "minimal, XDP, DSR (IPIP)"
	SideMinimalTC       = "minimal, tc"
	SideTCChecksum      = "minimal, tc, the kernel's checksums"
	SideTCTunnel        = "minimal, tc, DSR (IPIP)"
	SideXDPSNAT         = "Beeline, XDP, SNAT"
	SideXDPDSR          = "Beeline, XDP, DSR (IPIP)"
	SideTCSNAT          = "Beeline, tc, SNAT"
	SideTCDSR           = "Beeline, tc, DSR (IPIP)"
	SideIPTables        = "iptables (nft), DNAT, 1 rule"
	SideOldIPTables     = "iptables (legacy), DNAT, 1 rule"
	SideNFT             = "nft, DNAT, 1 rule"
	sideMinimalRedirect = "minimal, XDP redirect"
)

// sizes are the numbers of Services in kube-proxy.
func sizes(b *harness.Bench) []int {
	if b.Smoke {
		return []int{1}
	}
	return []int{1, 1000, harness.MostServices}
}

// NewRig has each function add sides, in this order, and proves that each side forwards packets.
func NewRig(ctx context.Context, b *harness.Bench, adds ...func(*Rig, context.Context) error) (rig *Rig, err error) {
	rig = &Rig{Bench: b, CPUs: CPUs(b.Two)}
	defer func() {
		if err != nil {
			err = errors.Join(err, rig.End())
		}
	}()
	for _, add := range adds {
		if err := add(rig, ctx); err != nil {
			return rig, err
		}
	}
	for _, s := range rig.Sides {
		if err := s.Prove(ctx, streamPause(rig.Bench)); err != nil {
			return rig, fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	return rig, nil
}

// streamPause is how long both sides of a UDP flow are silent before they send again, so that the flow
// counts as established.
func streamPause(b *harness.Bench) time.Duration {
	if b.Smoke {
		return 0
	}
	return 4 * time.Second
}

// End ends the labs.
func (rig *Rig) End() error {
	var errs []error
	for _, end := range rig.open {
		errs = append(errs, end())
	}
	for _, l := range rig.Lines {
		errs = append(errs, l.end())
	}
	for _, w := range rig.worlds {
		errs = append(errs, w.End())
	}
	return errors.Join(errs...)
}

// NewWorld creates a lab of three nodes.
func (rig *Rig) NewWorld() (*harness.World, error) {
	w, err := harness.NewWorldOf(lab.Shape{ThreeNodes: true})
	if err != nil {
		return nil, err
	}
	rig.worlds = append(rig.worlds, w)
	return w, w.ReadyForXDP()
}

func (rig *Rig) newLine(ctx context.Context, w *harness.World, name string) (*Line, error) {
	l, err := NewLine(ctx, w, name, rig.CPUs, Flows)
	if err == nil {
		rig.Lines = append(rig.Lines, l)
	}
	return l, err
}

func (rig *Rig) add(s *Side) {
	if !s.Service.IsValid() {
		s.Service = Service
	}
	rig.Sides = append(rig.Sides, s)
}

// InTurns calls a function for each side in each round, in the order of harness.Turns.
func (rig *Rig) InTurns(rounds int, run func(round int, s *Side) error) error {
	for round := range rounds {
		for _, i := range harness.Turns(round, len(rig.Sides)) {
			if err := run(round, rig.Sides[i]); err != nil {
				return fmt.Errorf("%s: %w", rig.Sides[i].Name, err)
			}
		}
	}
	return nil
}

func runsOf(program *ebpf.Program) func() (uint64, error) {
	return func() (uint64, error) {
		stats, err := program.Stats()
		if err != nil {
			return 0, err
		}
		return stats.RunCount, nil
	}
}

// AddBeeline adds an agent with XDP on node-a, and one with tc on node-b. They have ended before the
// measurement.
func (rig *Rig) AddBeeline(ctx context.Context) error {
	w, err := rig.NewWorld()
	if err != nil {
		return err
	}
	for _, object := range rateServices() {
		if err := node.WriteManifest(w.Folder, object.Name+".yaml", object.Service, object.Slice); err != nil {
			return err
		}
	}
	for _, m := range []struct{ host, mode, snat, dsr string }{
		{"node-a", "xdp", SideXDPSNAT, SideXDPDSR}, {"node-b", "tc", SideTCSNAT, SideTCDSR},
	} {
		agent, err := w.StartAgent(rig.Bench.Program, m.host, m.mode,
			"--max-flows", strconv.Itoa(records), "--conntrack-udp-timeout", rememberFor.String(), "--conntrack-udp-timeout-stream", rememberFor.String())
		if err != nil {
			return err
		}
		line, err := rig.newLine(ctx, w, m.host)
		if err != nil {
			return err
		}
		count := func(reasons ...string) func() (uint64, error) {
			return func() (sum uint64, err error) {
				counts, err := bpf.ReadEdgeCounters(agent.BPFFS())
				for _, r := range reasons {
					sum += counts[r]
				}
				return sum, err
			}
		}
		rig.add(&Side{Name: m.snat, Line: line, Becomes: BecomesSNAT, handled: count("new", "established"), Begun: count("new")})
		rig.add(&Side{Name: m.dsr, Line: line, Set: 1, Becomes: becomesIPIP, Service: rateDirect, handled: count("untracked")})
	}
	return nil
}

// Settle waits until the Service with DSR is untracked, and ends the agents.
func (rig *Rig) Settle(ctx context.Context) error {
	for _, agent := range rig.worlds[0].Agents {
		if _, err := harness.AwaitUntracked(ctx, agent); err != nil {
			return err
		}
		if err := agent.Stop(); err != nil {
			return err
		}
	}
	return nil
}

// AddProxies adds kube-proxy with each number of Services: in nftables mode on node-a, in iptables mode on
// node-b. It has ended before the measurement; its rules stay.
func (rig *Rig) AddProxies(ctx context.Context) error {
	if err := controlplane.Find(rig.Bench.ControlPlane); err != nil {
		return nil // the printed table says so
	}
	for _, services := range sizes(rig.Bench) {
		if err := rig.addProxy(ctx, services); err != nil {
			return fmt.Errorf("kube-proxy with %d Services: %w", services, err)
		}
	}
	return nil
}

// CPUs puts the balancer on the CPU with fewer interrupts.
func CPUs(two result.CPUPair) result.CPUPair {
	return result.CPUPair{Client: two.Server, Server: two.Client}
}
