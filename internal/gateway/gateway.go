// SPDX-License-Identifier: Apache-2.0

// Package gateway lets established flows that this node forwards leave the IP stack: by the flow cache (bpf/gateway),
// or by a flowtable of the kernel.
package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/condition"
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/gateway/flow"
	"beeline.io/beeline/internal/netdev"
	"beeline.io/beeline/internal/wakeup"
)

// Datapath is what the gateway needs of package datapath.
type Datapath interface {
	SetDevices(component string, devices ...int) error
	GatewayDevices() datapath.Hash[uint32, uint32]
	GatewayTables() (*datapath.GatewayTables, error)
	WaitForReaders() error
	ForeignProgram(id uint32) (name string, foreign bool)
}

// Config is the gateway's configuration.
type Config struct {
	// Threshold is the number of packets of one direction after which it is a candidate.
	Threshold uint32
	// Devices returns the gateway's devices.
	Devices func() ([]Device, error)
	// IgnoreFilters takes flows that bypass rules with an effect on each packet.
	IgnoreFilters bool
	// Refuses returns why a flow stays on the stack; empty: it need not.
	Refuses func(flow.Flow) string
	Log     *slog.Logger
}

// Device is a device of the gateway.
type Device struct {
	Index int    `json:"index"`
	Name  string `json:"name"`
	// Bridge: it is a bridge.
	Bridge bool `json:"bridge,omitempty"`
	// Master is its bridge, bond or VRF; empty: none.
	Master       string `json:"master,omitempty"`
	MasterIndex  int    `json:"masterIndex,omitempty"`
	MasterBridge bool   `json:"masterBridge,omitempty"`
}

// Gateway keeps the programs at the gateway's devices. All methods may be called from any goroutine.
type Gateway struct {
	config   Config
	datapath Datapath
	flows    *Flows
	rules    *rules
	changed  wakeup.Signal // devices

	reconciling sync.Mutex

	mu       sync.Mutex
	ready    bool
	devices  []Device
	problems map[string]string // errors by what failed; each is logged once
}

// New returns a gateway. Start attaches it.
func New(d Datapath, c Config) (*Gateway, error) {
	tables, err := d.GatewayTables()
	if err != nil {
		return nil, err
	}
	r, err := newRules(d.ForeignProgram)
	if err != nil {
		return nil, err
	}
	refuses := func(f flow.Flow) string {
		if reason := c.Refuses(f); reason != "" || c.IgnoreFilters {
			return reason
		}
		return r.refuses(f)
	}
	flows, err := NewFlows(tables, d.WaitForReaders, FlowsConfig{Threshold: c.Threshold, Refuses: refuses, Log: c.Log})
	if err != nil {
		r.watcher.Close()
		return nil, err
	}
	return &Gateway{config: c, datapath: d, flows: flows, rules: r, changed: wakeup.NewSignal(), problems: map[string]string{}}, nil
}

// Flows returns the flow cache.
func (g *Gateway) Flows() *Flows { return g.flows }

// Start attaches the programs; from now on they follow the devices.
func (g *Gateway) Start() {
	g.mu.Lock()
	g.ready = true
	g.mu.Unlock()
	g.Reconcile()
}

// Devices are read settleTime after the first change, so that several of them need one read. rulesInterval is how often
// packet filters are compared: the kernel does not notify of all their changes.
const (
	settleTime    = 20 * time.Millisecond
	rulesInterval = 500 * time.Millisecond
)

// Run follows the devices, routes and packet filters until ctx ends. The programs stay attached.
func (g *Gateway) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tasks := []func(context.Context) error{
		g.flows.Run,
		func(ctx context.Context) error {
			return netdev.Watch(ctx, g.changed, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
		},
		func(ctx context.Context) error {
			return watchRoutes(ctx, func(mtu bool) { g.note("routes", g.flows.RoutesChanged(mtu)) })
		},
		g.follow,
	}
	failed := make(chan error, len(tasks))
	var running sync.WaitGroup
	for _, task := range tasks {
		running.Go(func() { failed <- task(ctx) })
	}
	err := <-failed
	cancel()
	running.Wait()
	return err
}

func (g *Gateway) follow(ctx context.Context) error {
	rules := time.NewTicker(rulesInterval)
	defer rules.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-rules.C:
			g.auditRules()
			continue
		case <-g.changed:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(settleTime):
		}
		g.Reconcile()
	}
}

func (g *Gateway) auditRules() {
	g.reconciling.Lock()
	defer g.reconciling.Unlock()
	g.mu.Lock()
	devices, ready := g.devices, g.ready
	g.mu.Unlock()
	if ready {
		g.compareRules(devices)
	}
}

// compareRules returns all flows to the stack if packet filters have changed: the new ones decide about them.
func (g *Gateway) compareRules(devices []Device) {
	changed, err := g.rules.compare(devices)
	if changed || err != nil {
		g.flows.Flush()
	}
	g.note("packet filters", err)
}

// Reconcile attaches the programs to the devices as they are.
func (g *Gateway) Reconcile() {
	g.reconciling.Lock()
	defer g.reconciling.Unlock()
	g.mu.Lock()
	ready := g.ready
	g.mu.Unlock()
	if ready {
		g.note("devices", g.reconcile())
	}
}

func (g *Gateway) reconcile() error {
	devices, err := g.config.Devices()
	if err != nil {
		return err
	}
	wanted := map[uint32]uint32{}
	for _, d := range devices {
		wanted[uint32(d.Index)] = 0
		if netdev.IsExternalTunnel(d.Index) {
			wanted[uint32(d.Index)] = datapath.GatewayExternal
		}
	}
	table := g.datapath.GatewayDevices()
	if err := datapath.Withdraw(table, wanted); err != nil {
		return err
	}
	indexes := slices.Sorted(maps.Keys(wanted))
	all := make([]int, len(indexes))
	for i, index := range indexes {
		all[i] = int(index)
	}
	if err := g.datapath.SetDevices(datapath.GatewayComponent, all...); err != nil {
		return fmt.Errorf("attach the programs: %w", err)
	}
	g.mu.Lock()
	same := slices.Equal(g.devices, devices)
	g.devices = devices
	g.mu.Unlock()
	if err := datapath.Publish(table, wanted); err != nil || same {
		return err
	}
	g.compareRules(devices) // those about other devices concern the flows
	return nil
}

// note keeps the error of something as a problem until it succeeds.
func (g *Gateway) note(what string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil {
		delete(g.problems, what)
		return
	}
	if g.problems[what] != err.Error() {
		g.config.Log.Error("the gateway", "error", err)
	}
	g.problems[what] = err.Error()
}

// Conditions returns what is wrong.
func (g *Gateway) Conditions() (all condition.List) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, what := range slices.Sorted(maps.Keys(g.problems)) {
		all = append(all, condition.GatewayFailed.New("%s: %s", what, g.problems[what]))
	}
	return all
}

// Close frees what the gateway needs of this process. The programs stay attached.
func (g *Gateway) Close() {
	g.flows.Close()
	g.rules.watcher.Close()
}
