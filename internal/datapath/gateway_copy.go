// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"beeline.io/beeline/internal/settable"
)

// GatewayCopy is a second flow cache with small tables of its own, for a self-test. It is neither pinned nor repaired.
type GatewayCopy struct {
	Tables *GatewayTables

	collection *ebpf.Collection
	links      []link.Link
}

// gatewayCopySets is the number of sets of a GatewayCopy.
const gatewayCopySets = 16

// NewGatewayCopy loads the programs again.
func NewGatewayCopy() (*GatewayCopy, error) {
	spec, err := LoadGateway()
	if err != nil {
		return nil, err
	}
	resolution, err := jiffy()
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]any{
		GatewayVarGatewaySets: uint32(gatewayCopySets), GatewayVarJiffyNs: resolution, GatewayVarPseudoHeaderV6: PseudoHeaderV6(),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, err
		}
	}
	spec.Maps[GatewayMapGatewayFlows].MaxEntries = gatewayCopySets
	spec.Maps[GatewayMapGatewayTags].MaxEntries = gatewayCopySets
	spec.Maps[GatewayMapGatewayDevices].MaxEntries = 16
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, fmt.Errorf("load the programs: %w", err)
	}
	if err := settable.InitSecret(c.Maps[GatewayMapTableSecret]); err != nil {
		c.Close()
		return nil, err
	}
	secret, err := settable.ReadSecret(c.Maps[GatewayMapTableSecret])
	tables := &GatewayTables{
		Flows: c.Maps[GatewayMapGatewayFlows], Tags: c.Maps[GatewayMapGatewayTags], Controls: c.Maps[GatewayMapGatewayControls],
		Candidates: c.Maps[GatewayMapGatewayCandidates], Secret: secret,
	}
	return &GatewayCopy{Tables: tables, collection: c}, err
}

// gatewayCopyName is the name of filters at tc of kernels before Linux 6.6.
const gatewayCopyName = "selftest"

// Attach attaches the programs to a device of the caller's network namespace.
func (g *GatewayCopy) Attach(device int) error {
	if err := g.collection.Maps[GatewayMapGatewayDevices].Put(uint32(device), uint32(0)); err != nil {
		return err
	}
	for _, h := range Gateway().DeviceHooks {
		program := g.collection.Programs[h.Program]
		l, err := link.AttachTCX(link.TCXOptions{Interface: device, Program: program, Attach: h.Attach})
		if errors.Is(err, ebpf.ErrNotSupported) {
			err = attachFilter(gatewayCopyName, GatewayComponent, device, h.Attach, program)
		} else if err == nil {
			g.links = append(g.links, l)
		}
		if err != nil {
			return fmt.Errorf("attach %s to device %d: %w", h.Name, device, err)
		}
	}
	return nil
}

// Close detaches the programs. Filters of earlier kernels end with their device.
func (g *GatewayCopy) Close() {
	for _, l := range g.links {
		l.Close()
	}
	g.collection.Close()
}
