// SPDX-License-Identifier: Apache-2.0

// Package gateway lets established flows that this node forwards leave the IP stack: by the flow cache (bpf/gateway),
// or by a flowtable of the kernel.
package gateway

import (
	"context"
	"errors"
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
	"beeline.io/beeline/internal/gateway/flowtable"
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
	Provider Provider
	// NoFlowCache is why there is no flow cache; empty: it is loaded.
	NoFlowCache string
	// Threshold is the number of packets of one direction after which it is a candidate.
	Threshold uint32
	// Devices returns the gateway's devices.
	Devices func() ([]Device, error)
	// IgnoreFilters takes flows that bypass rules with an effect on each packet.
	IgnoreFilters bool
	// Refuses returns why a flow stays on the stack; empty: it need not. Traffic is the same for a flowtable.
	Refuses func(flow.Flow) string
	Traffic flowtable.Config
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

// Gateway keeps a provider at the gateway's devices. All methods may be called from any goroutine.
type Gateway struct {
	config    Config
	datapath  Datapath
	flows     *Flows // nil: the flow cache is not loaded
	flowtable *flowtable.Flowtable
	rules     *rules
	changed   wakeup.Signal // devices

	reconciling sync.Mutex
	// started: Start was called; chosen: the provider is.
	started chan struct{}

	mu       sync.Mutex
	chosen   bool
	provider Provider // empty: none works
	why      string   // why not a better one
	refused  map[string]string
	devices  []Device
	problems map[string]string // errors by what failed; each is logged once
}

// New returns a gateway. Start attaches it.
func New(d Datapath, c Config) (*Gateway, error) {
	r, err := newRules(d.ForeignProgram)
	if err != nil {
		return nil, err
	}
	g := &Gateway{
		config: c, datapath: d, flowtable: flowtable.New(nil, c.Log), rules: r, changed: wakeup.NewSignal(),
		started: make(chan struct{}), problems: map[string]string{},
	}
	if c.NoFlowCache != "" {
		return g, nil
	}
	tables, err := d.GatewayTables()
	if err == nil {
		g.flows, err = NewFlows(tables, d.WaitForReaders, FlowsConfig{Threshold: c.Threshold, Refuses: g.refuses, Log: c.Log})
	}
	if err != nil {
		r.watcher.Close()
		return nil, err
	}
	return g, nil
}

// refuses returns why a flow stays on the stack.
func (g *Gateway) refuses(f flow.Flow) string {
	if reason := g.config.Refuses(f); reason != "" || g.config.IgnoreFilters {
		return reason
	}
	return g.rules.refuses(f)
}

// Start has Run choose a provider and attach it; from then on it follows the devices.
func (g *Gateway) Start() { close(g.started) }

// Devices are read settleTime after the first change, so that several of them need one read. rulesInterval is how often
// packet filters are compared: the kernel does not notify of all their changes.
const (
	settleTime    = 20 * time.Millisecond
	rulesInterval = 500 * time.Millisecond
)

// Run chooses the provider, and follows the devices, routes and packet filters until ctx ends. Flows go on without it.
func (g *Gateway) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-g.started:
	}
	provider, why := g.choose(ctx)
	g.mu.Lock()
	g.chosen, g.provider, g.why = true, provider, why
	g.mu.Unlock()
	if provider == "" {
		g.config.Log.Error("no provider of the gateway works", "reason", why)
		return g.withdraw()
	}
	g.config.Log.Info("gateway", "provider", provider, "others", why)
	return g.follow(ctx)
}

// withdraw removes what an earlier agent has left.
func (g *Gateway) withdraw() error {
	if err := g.flowtable.Close(); err != nil {
		return err
	}
	if g.flows == nil {
		return nil
	}
	return g.datapath.SetDevices(datapath.GatewayComponent)
}

// follow runs the goroutines of the provider.
func (g *Gateway) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tasks := []func(context.Context) error{
		func(ctx context.Context) error {
			return netdev.Watch(ctx, g.changed, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
		},
		g.keep,
	}
	if g.provider == Cache {
		g.track()
		tasks = append(tasks, g.flows.Run, func(ctx context.Context) error {
			return watchRoutes(ctx, func(mtu bool) { g.note("routes", g.flows.RoutesChanged(mtu)) })
		})
	} else {
		tasks = append(tasks, g.flowtable.Run, g.chooseFlows)
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

// keep follows the devices and the packet filters.
func (g *Gateway) keep(ctx context.Context) error {
	rules := time.NewTicker(rulesInterval)
	defer rules.Stop()
	g.Reconcile()
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
	devices := g.devices
	g.mu.Unlock()
	g.compareRules(devices)
}

// compareRules returns all flows to the stack if packet filters have changed: the new ones decide about them.
func (g *Gateway) compareRules(devices []Device) {
	changed, err := g.rules.compare(devices)
	switch {
	case !changed && err == nil:
	case g.provider == Cache:
		g.flows.Flush()
		g.track() // its table may be gone with the others
	default:
		err = errors.Join(err, g.apply(devices))
	}
	g.note("packet filters", err)
}

// track has conntrack follow forwarded flows, and ends the flowtable of an earlier agent. Without nf_tables the rules
// of others, such as those of iptables, decide whether conntrack does.
func (g *Gateway) track() {
	if err := flowtable.Track(); err != nil {
		g.config.Log.Warn("the gateway: only flows that other rules have conntrack follow can be learned", "error", err)
	}
}

// Reconcile attaches the provider to the devices as they are.
func (g *Gateway) Reconcile() {
	g.reconciling.Lock()
	defer g.reconciling.Unlock()
	g.note("devices", g.reconcile())
}

func (g *Gateway) reconcile() error {
	devices, err := g.config.Devices()
	if err != nil {
		return err
	}
	g.mu.Lock()
	same := g.devices != nil && slices.Equal(g.devices, devices)
	g.devices = append([]Device{}, devices...)
	g.mu.Unlock()
	if g.provider != Cache {
		if same {
			return nil
		}
		if g.flows != nil { // programs of an earlier agent
			if err := g.datapath.SetDevices(datapath.GatewayComponent); err != nil {
				return err
			}
		}
		g.compareRules(devices)
		return g.apply(devices)
	}
	if err := g.attach(devices); err != nil || same {
		return err
	}
	g.compareRules(devices) // those about other devices concern the flows
	return nil
}

// apply creates the flowtable for devices. All flows return to the stack, and are taken again.
func (g *Gateway) apply(devices []Device) error {
	r, err := g.flowtable.Apply(g.flowtableConfig(devices, g.provider))
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refused = r.Refused
	return nil
}

// attach attaches the programs of the flow cache to devices. A device is in the table while the programs are there.
func (g *Gateway) attach(devices []Device) error {
	wanted := map[uint32]uint32{}
	for _, d := range devices {
		flags := uint32(0)
		if netdev.IsExternalTunnel(d.Index) {
			flags |= datapath.GatewayExternal
		}
		if d.MasterIndex != 0 { // a port of a bridge or bond is no device of the gateway
			flags |= datapath.GatewayInVRF
		}
		wanted[uint32(d.Index)] = flags
	}
	table := g.datapath.GatewayDevices()
	if err := datapath.Withdraw(table, wanted); err != nil {
		return err
	}
	var all []int
	for _, index := range slices.Sorted(maps.Keys(wanted)) {
		all = append(all, int(index))
	}
	if err := g.datapath.SetDevices(datapath.GatewayComponent, all...); err != nil {
		return fmt.Errorf("attach the programs: %w", err)
	}
	return datapath.Publish(table, wanted)
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
	if g.chosen && g.provider == "" {
		all = append(all, condition.GatewayUnavailable.New("%s", g.why))
	}
	if n := g.flows.withoutRoom(); n > 0 {
		all = append(all, condition.GatewayFull.New("the flow cache has had no room for %d directions of flows in the last five minutes: raise --gateway-max-flows", n))
	}
	for _, what := range slices.Sorted(maps.Keys(g.problems)) {
		all = append(all, condition.GatewayFailed.New("%s: %s", what, g.problems[what]))
	}
	for _, device := range slices.Sorted(maps.Keys(g.refused)) {
		all = append(all, condition.GatewayDeviceRefused.New("%s: %s", device, g.refused[device]))
	}
	return all
}

// Close frees what the gateway needs of this process. Flows go on.
func (g *Gateway) Close() {
	if g.flows != nil {
		g.flows.Close()
	}
	g.rules.watcher.Close()
}
