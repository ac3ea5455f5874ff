// SPDX-License-Identifier: Apache-2.0

package main

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

// A rateRig is the labs of all sides, which exist at the same time to take turns. Each node of a lab is a
// balancer.
type rateRig struct {
	bench  *harness.Bench
	cpus   result.CPUPair // of client and receiver, and of the balancer
	worlds []*harness.World
	lines  []*rateLine
	sides  []*rateSide
	open   []func() error
}

// Sides that others are compared with.
const (
	sideSink            = "sink only"
	sideMinimalXDP      = "minimal, XDP_TX"
	sideMinimalRecords  = "minimal with records, XDP_TX"
	sideMinimalTunnel   = "minimal, XDP, DSR (IPIP)"
	sideMinimalTC       = "minimal, tc"
	sideTCChecksum      = "minimal, tc, the kernel's checksums"
	sideTCTunnel        = "minimal, tc, DSR (IPIP)"
	sideXDPSNAT         = "Beeline, XDP, SNAT"
	sideXDPDSR          = "Beeline, XDP, DSR (IPIP)"
	sideTCSNAT          = "Beeline, tc, SNAT"
	sideTCDSR           = "Beeline, tc, DSR (IPIP)"
	sideIPTables        = "iptables (nft), DNAT, 1 rule"
	sideOldIPTables     = "iptables (legacy), DNAT, 1 rule"
	sideNFT             = "nft, DNAT, 1 rule"
	sideMinimalRedirect = "minimal, XDP redirect"
)

// rateSizes are the numbers of Services in kube-proxy.
func rateSizes(b *harness.Bench) []int {
	if b.Smoke {
		return []int{1}
	}
	return []int{1, 1000, harness.MostServices}
}

// newRateRig has each function add sides, in this order, and proves that each side forwards packets.
func newRateRig(ctx context.Context, b *harness.Bench, adds ...func(*rateRig, context.Context) error) (rig *rateRig, err error) {
	rig = &rateRig{bench: b, cpus: rateCPUs(b.Two)}
	defer func() {
		if err != nil {
			err = errors.Join(err, rig.end())
		}
	}()
	for _, add := range adds {
		if err := add(rig, ctx); err != nil {
			return rig, err
		}
	}
	for _, s := range rig.sides {
		if err := s.prove(ctx, streamPause(rig.bench)); err != nil {
			return rig, fmt.Errorf("%s: %w", s.name, err)
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

func (rig *rateRig) end() error {
	var errs []error
	for _, end := range rig.open {
		errs = append(errs, end())
	}
	for _, l := range rig.lines {
		errs = append(errs, l.end())
	}
	for _, w := range rig.worlds {
		errs = append(errs, w.End())
	}
	return errors.Join(errs...)
}

func (rig *rateRig) newWorld() (*harness.World, error) {
	w, err := harness.NewWorldOf(lab.Shape{ThreeNodes: true})
	if err != nil {
		return nil, err
	}
	rig.worlds = append(rig.worlds, w)
	return w, w.ReadyForXDP()
}

func (rig *rateRig) newLine(ctx context.Context, w *harness.World, name string) (*rateLine, error) {
	l, err := newRateLine(ctx, w, name, rig.cpus, rateFlows)
	if err == nil {
		rig.lines = append(rig.lines, l)
	}
	return l, err
}

func (rig *rateRig) add(s *rateSide) {
	if !s.service.IsValid() {
		s.service = rateService
	}
	rig.sides = append(rig.sides, s)
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

// addBeeline adds an agent with XDP on node-a, and one with tc on node-b. They have ended before the
// measurement.
func (rig *rateRig) addBeeline(ctx context.Context) error {
	w, err := rig.newWorld()
	if err != nil {
		return err
	}
	for _, object := range rateServices() {
		if err := node.WriteManifest(w.Folder, object.Name+".yaml", object.Service, object.Slice); err != nil {
			return err
		}
	}
	for _, m := range []struct{ host, mode, snat, dsr string }{
		{"node-a", "xdp", sideXDPSNAT, sideXDPDSR}, {"node-b", "tc", sideTCSNAT, sideTCDSR},
	} {
		agent := &node.Agent{Host: w.Host(m.host), Program: rig.bench.Program, Manifests: w.Folder, EdgeMode: m.mode,
			Flags: []string{"--max-flows", strconv.Itoa(rateRecords), "--conntrack-udp-timeout", rememberFor.String(), "--conntrack-udp-timeout-stream", rememberFor.String()}}
		w.Agents = append(w.Agents, agent)
		if err := agent.Start(); err != nil {
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
		rig.add(&rateSide{name: m.snat, line: line, becomes: becomesSNAT, handled: count("new", "established"), begun: count("new")})
		rig.add(&rateSide{name: m.dsr, line: line, set: 1, becomes: becomesIPIP, service: rateDirect, handled: count("untracked")})
	}
	return nil
}

// settle waits until the Service with DSR is untracked, and ends the agents.
func (rig *rateRig) settle(ctx context.Context) error {
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

// addProxies adds kube-proxy with each number of Services: in nftables mode on node-a, in iptables mode on
// node-b. It has ended before the measurement; its rules stay.
func (rig *rateRig) addProxies(ctx context.Context) error {
	if err := controlplane.Find(rig.bench.ControlPlane); err != nil {
		return nil // the printed table says so
	}
	for _, services := range rateSizes(rig.bench) {
		if err := rig.addProxy(ctx, services); err != nil {
			return fmt.Errorf("kube-proxy with %d Services: %w", services, err)
		}
	}
	return nil
}

// rateCPUs puts the balancer on the CPU with fewer interrupts.
func rateCPUs(two result.CPUPair) result.CPUPair {
	return result.CPUPair{Client: two.Server, Server: two.Client}
}
