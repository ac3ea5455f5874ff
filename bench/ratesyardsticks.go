// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/testrun"
)

// addYardsticks adds the minimum at each hook: at XDP on node-a, at tc on node-b.
func (rig *rateRig) addYardsticks(ctx context.Context) error {
	w, err := rig.newWorld()
	if err != nil {
		return err
	}
	return errors.Join(rig.addXDPYardsticks(ctx, w), rig.addTCYardsticks(ctx, w))
}

func (rig *rateRig) addXDPYardsticks(ctx context.Context, w *harness.World) error {
	line, err := rig.newLine(ctx, w, "node-a")
	if err != nil {
		return err
	}
	if err := testrun.FillMinimal(line.collection.Maps, rateService, unix.IPPROTO_UDP, rateEndpoint.Addr()); err != nil {
		return err
	}
	for _, s := range []struct {
		name, program string
		becomes       becoming
	}{
		{sideSink, RatesProgRatesSink, becomesNothing},
		{sideMinimalXDP, RatesProgRatesMinimal, becomesDNAT},
		{sideMinimalRecords, RatesProgRatesRecords, becomesDNAT},
		{sideMinimalTunnel, RatesProgRatesEncapsulate, becomesIPIP},
		{sideMinimalRedirect, RatesProgRatesRedirect, becomesDNAT},
	} {
		attach := func() error { return line.setXDP(line.balancer, line.near, s.program) }
		rig.add(&rateSide{name: s.name, line: line, becomes: s.becomes, attach: attach, stats: true, handled: runsOf(line.collection.Programs[s.program])})
	}
	return nil
}

// addTCYardsticks adds the minimal program, which writes packets directly, and one that uses the kernel's
// helpers where needed.
func (rig *rateRig) addTCYardsticks(ctx context.Context, w *harness.World) error {
	line, err := rig.newLine(ctx, w, "node-b")
	if err != nil {
		return err
	}
	collection, err := loadTCYardsticks(line.balancer.Addr4)
	if err != nil {
		return err
	}
	rig.open = append(rig.open, func() error { collection.Close(); return nil })
	if err := testrun.FillMinimal(collection.Maps, rateService, unix.IPPROTO_UDP, rateEndpoint.Addr()); err != nil {
		return err
	}
	var at link.Link
	if err := line.balancer.Do(func() error {
		at, err = link.AttachTCX(link.TCXOptions{Interface: line.near, Program: collection.Programs[RatesTCProgRatesTcMinimal], Attach: ebpf.AttachTCXIngress})
		return err
	}); err != nil {
		return fmt.Errorf("minimal program at tc (Linux 6.6): %w", err)
	}
	rig.open = append(rig.open, at.Close)
	for _, s := range []struct {
		name, program string
		becomes       becoming
	}{
		{sideMinimalTC, RatesTCProgRatesTcMinimal, becomesDNAT},
		{sideTCChecksum, RatesTCProgRatesTcChecksum, becomesDNAT},
		{sideTCTunnel, RatesTCProgRatesTcEncapsulate, becomesIPIP},
	} {
		program := collection.Programs[s.program]
		attach := func() error { return at.Update(program) }
		rig.add(&rateSide{name: s.name, line: line, becomes: s.becomes, attach: attach, stats: true, handled: runsOf(program)})
	}
	return nil
}

// loadTCYardsticks loads the minimal programs at tc; the source is that of outer headers.
func loadTCYardsticks(source netip.Addr) (*ebpf.Collection, error) {
	spec, err := LoadRatesTC()
	if err != nil {
		return nil, err
	}
	if err := setOuterSource(spec, source); err != nil {
		return nil, err
	}
	return ebpf.NewCollection(spec)
}

// setOuterSource sets the source of the yardsticks' outer headers.
func setOuterSource(spec *ebpf.CollectionSpec, source netip.Addr) error {
	return spec.Variables[RatesTCVarOuterSource].Set(binary.NativeEndian.Uint32(source.AsSlice()))
}
