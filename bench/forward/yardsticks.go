// SPDX-License-Identifier: Apache-2.0

package forward

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

// AddYardsticks adds the minimum at each hook: at XDP on node-a, at tc on node-b.
func (rig *Rig) AddYardsticks(ctx context.Context) error {
	w, err := rig.NewWorld()
	if err != nil {
		return err
	}
	return errors.Join(rig.addXDPYardsticks(ctx, w), rig.addTCYardsticks(ctx, w))
}

func (rig *Rig) addXDPYardsticks(ctx context.Context, w *harness.World) error {
	line, err := rig.newLine(ctx, w, "node-a")
	if err != nil {
		return err
	}
	if err := testrun.FillMinimal(line.collection.Maps, Service, unix.IPPROTO_UDP, Endpoint.Addr()); err != nil {
		return err
	}
	for _, s := range []struct {
		name, program string
		becomes       becoming
	}{
		{sideSink, RatesProgRatesSink, BecomesNothing},
		{SideMinimalXDP, RatesProgRatesMinimal, becomesDNAT},
		{SideMinimalRecords, RatesProgRatesRecords, becomesDNAT},
		{SideMinimalTunnel, RatesProgRatesEncapsulate, becomesIPIP},
		{sideMinimalRedirect, RatesProgRatesRedirect, becomesDNAT},
	} {
		attach := func() error { return line.setXDP(line.balancer, line.Near, s.program) }
		rig.add(&Side{Name: s.name, Line: line, Becomes: s.becomes, attach: attach, stats: true, handled: runsOf(line.collection.Programs[s.program])})
	}
	return nil
}

// addTCYardsticks adds the minimal program, which writes packets directly, and one that uses the kernel's
// helpers where needed.
func (rig *Rig) addTCYardsticks(ctx context.Context, w *harness.World) error {
	line, err := rig.newLine(ctx, w, "node-b")
	if err != nil {
		return err
	}
	collection, err := LoadTCYardsticks(line.balancer.Addr4)
	if err != nil {
		return err
	}
	rig.open = append(rig.open, func() error { collection.Close(); return nil })
	if err := testrun.FillMinimal(collection.Maps, Service, unix.IPPROTO_UDP, Endpoint.Addr()); err != nil {
		return err
	}
	var at link.Link
	if err := line.balancer.Do(func() error {
		at, err = link.AttachTCX(link.TCXOptions{Interface: line.Near, Program: collection.Programs[RatesTCProgRatesTcMinimal], Attach: ebpf.AttachTCXIngress})
		return err
	}); err != nil {
		return fmt.Errorf("minimal program at tc (Linux 6.6): %w", err)
	}
	rig.open = append(rig.open, at.Close)
	for _, s := range []struct {
		name, program string
		becomes       becoming
	}{
		{SideMinimalTC, RatesTCProgRatesTcMinimal, becomesDNAT},
		{SideTCChecksum, RatesTCProgRatesTcChecksum, becomesDNAT},
		{SideTCTunnel, RatesTCProgRatesTcEncapsulate, becomesIPIP},
	} {
		program := collection.Programs[s.program]
		attach := func() error { return at.Update(program) }
		rig.add(&Side{Name: s.name, Line: line, Becomes: s.becomes, attach: attach, stats: true, handled: runsOf(program)})
	}
	return nil
}

// LoadTCYardsticks loads the minimal programs at tc; the source is that of outer headers.
func LoadTCYardsticks(source netip.Addr) (*ebpf.Collection, error) {
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
