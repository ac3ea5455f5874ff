// SPDX-License-Identifier: Apache-2.0

// Package offload lets established flows that this node forwards leave the IP stack: by the flow cache (bpf/offload),
// or by a flowtable of the kernel. Begin with refusal.go (which flows), learn.go (flow cache), flowtable/ (the
// kernel's).
package offload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/shortcut/offload/flowtable"
	"beeline.io/beeline/internal/shortcut/offload/policy"
	"beeline.io/beeline/internal/util/wakeup"
)

// Datapath is what flow offload needs of package bpf.
type Datapath interface {
	SetDevices(component string, devices ...int) error
	DeviceTable() bpf.Hash[uint32, uint32]
	Tables() (*Tables, error)
	WaitForReaders() error
	ForeignProgram(id uint32) (name string, foreign bool)
}

// Config is the offload configuration.
type Config struct {
	Provider Provider
	// NoFlowCache is why there is no flow cache; empty: it is loaded.
	NoFlowCache string
	// Threshold is the number of packets of one direction after which it is a candidate.
	Threshold uint32
	// Network is that of the node, and Devices returns the offload devices there.
	Network *node.Network
	Devices func() ([]Device, error)
	// IgnoreFilters takes flows that bypass rules with an effect on each packet.
	IgnoreFilters bool
	Policy        policy.Policy
	// Edge has the edge's conntrack entries; nil: the edge is off.
	Edge *conntrack.Tables
	Log  *slog.Logger
}

// Device is a device at which flows are offloaded.
type Device = api.OffloadDevice

// Offload keeps a provider at the offload devices. All methods may be called from any goroutine.
type Offload struct {
	config    Config
	datapath  Datapath
	flows     *FlowCache // nil: the flow cache is not loaded
	flowtable *flowtable.Flowtable
	rules     *rules
	changed   wakeup.Signal // devices, routing rules, rp_filter or XFRM policies

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

// newOffload returns flow offload. Start attaches it.
func newOffload(d Datapath, c Config) (*Offload, error) {
	r, err := newRules(c.Network, d.ForeignProgram)
	if err != nil {
		return nil, err
	}
	o := &Offload{
		config: c, datapath: d, flowtable: flowtable.New(nil, c.Log), rules: r, changed: wakeup.NewSignal(),
		started: make(chan struct{}), problems: map[string]string{},
	}
	if c.NoFlowCache != "" {
		return o, nil
	}
	tables, err := d.Tables()
	if err == nil {
		o.flows, err = NewFlowCache(tables, d.WaitForReaders, FlowCacheConfig{Threshold: c.Threshold, Refuses: o.refusal, Log: c.Log})
	}
	if err != nil {
		r.watcher.Close()
		return nil, err
	}
	return o, nil
}

// Start has Run choose a provider and attach it; from then on it follows the devices.
func (o *Offload) Start() { close(o.started) }

// Devices are read settleTime after the first change, so that several of them need one read. rulesInterval is how often
// packet filters are compared: the kernel does not notify of all their changes.
const (
	settleTime    = 20 * time.Millisecond
	rulesInterval = 500 * time.Millisecond
)

// Run chooses the provider, and follows the devices, routes and packet filters until ctx ends. Flows go on without it.
func (o *Offload) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-o.started:
	}
	provider, why := o.choose(ctx)
	o.use(provider, why)
	if provider == "" {
		condition.OffloadUnavailable.Log(o.config.Log, "no provider of flow offload works", "reason", why)
		return o.withdraw()
	}
	o.config.Log.Info("offload", "provider", provider, "others", why)
	return o.follow(ctx)
}

// use notes the provider that forwards flows, and why not a better one does.
func (o *Offload) use(provider Provider, why string) {
	o.mu.Lock()
	o.chosen, o.provider, o.why = true, provider, why
	o.mu.Unlock()
	o.rules.setHardware(provider == Hardware)
}

// withdraw removes what an earlier agent has left.
func (o *Offload) withdraw() error {
	if err := o.flowtable.Close(); err != nil {
		return err
	}
	if o.flows == nil {
		return nil
	}
	return o.datapath.SetDevices(ComponentName)
}

// follow runs the goroutines of the provider.
func (o *Offload) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	o.config.Network.Notify(o.changed, node.Devices|node.Rules|node.RPFilters|node.XFRM)
	tasks := []func(context.Context) error{o.keep}
	if o.provider == Cache {
		o.track()
		tasks = append(tasks, o.flows.Run, o.followRoutes, o.followRoutingRules)
	} else {
		tasks = append(tasks, o.flowtable.Run, o.chooseFlows)
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

// followRoutingRules returns all flows to the stack when routing rules change, if packet filters decide by routes.
func (o *Offload) followRoutingRules(ctx context.Context) error {
	changed := wakeup.NewSignal()
	o.config.Network.Notify(changed, node.Rules)
	for changed.Wait(ctx) {
		if o.rules.readRoutes() {
			o.flows.Flush()
		}
	}
	return nil
}

// keep follows the devices and the packet filters.
func (o *Offload) keep(ctx context.Context) error {
	rules := time.NewTicker(rulesInterval)
	defer rules.Stop()
	o.Reconcile()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-rules.C:
		case <-o.changed:
			if !wakeup.Sleep(ctx, settleTime) {
				return nil
			}
			o.Reconcile()
		}
		o.auditRules()
	}
}

func (o *Offload) auditRules() {
	o.reconciling.Lock()
	defer o.reconciling.Unlock()
	o.mu.Lock()
	devices := o.devices
	o.mu.Unlock()
	o.compareRules(devices)
}

// compareRules returns all flows to the stack if packet filters have changed: the new ones decide about them.
func (o *Offload) compareRules(devices []Device) {
	changed, err := o.rules.compare(devices)
	switch {
	case !changed && err == nil:
	case o.provider == Cache:
		o.flows.Flush()
		o.track() // its table may be gone with the others
	default:
		err = errors.Join(err, o.apply(devices))
	}
	o.note("packet filters", err)
}

// track has conntrack follow forwarded flows, and ends the flowtable of an earlier agent. Without nf_tables the rules
// of others, such as those of iptables, decide whether conntrack does.
func (o *Offload) track() {
	if err := flowtable.Track(); err != nil {
		o.config.Log.Warn("flow offload: only flows that other rules have conntrack follow can be learned", "error", err)
	}
}

// Reconcile attaches the provider to the devices as they are.
func (o *Offload) Reconcile() {
	o.reconciling.Lock()
	defer o.reconciling.Unlock()
	o.note("devices", o.reconcile())
}

func (o *Offload) reconcile() error {
	devices, err := o.config.Devices()
	if err != nil {
		return err
	}
	o.mu.Lock()
	same := o.devices != nil && slices.Equal(o.devices, devices)
	o.devices = append([]Device{}, devices...)
	o.mu.Unlock()
	if o.provider != Cache {
		if same {
			return nil
		}
		if o.flows != nil { // programs of an earlier agent
			if err := o.datapath.SetDevices(ComponentName); err != nil {
				return err
			}
		}
		o.compareRules(devices)
		return o.apply(devices)
	}
	if err := o.attach(devices); err != nil || same {
		return err
	}
	o.compareRules(devices) // those about other devices concern the flows
	return nil
}

// apply creates the flowtable for devices. All flows return to the stack, and are taken again.
func (o *Offload) apply(devices []Device) error {
	r, err := o.flowtable.Apply(o.flowtableConfig(devices, o.provider))
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refused = r.RefusedDevices
	return nil
}

// attach attaches the programs of the flow cache to devices. A device is in the table while the programs are there.
func (o *Offload) attach(devices []Device) error {
	rpFilters, err := o.config.Network.RPFilters()
	if err != nil {
		return err
	}
	wanted := map[uint32]uint32{}
	for _, d := range devices {
		flags := uint32(0)
		if netdev.IsExternalTunnel(d.Index) {
			flags |= deviceExternal
		}
		if d.MasterIndex != 0 { // a port of a bridge or bond is no device of flow offload
			flags |= deviceInVRF
		}
		if rpFilters[d.Index] == node.RPFilterStrict {
			flags |= deviceStrict
		}
		wanted[uint32(d.Index)] = flags
	}
	table := o.datapath.DeviceTable()
	if err := bpf.DeleteUnwanted(table, wanted); err != nil {
		return err
	}
	var all []int
	for _, index := range slices.Sorted(maps.Keys(wanted)) {
		all = append(all, int(index))
	}
	if err := o.datapath.SetDevices(ComponentName, all...); err != nil {
		return fmt.Errorf("attach the programs: %w", err)
	}
	return bpf.Publish(table, wanted)
}

// note keeps the error of something as a problem until it succeeds.
func (o *Offload) note(what string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		delete(o.problems, what)
		return
	}
	if o.problems[what] != err.Error() {
		condition.OffloadFailed.Log(o.config.Log, "flow offload", "error", err)
	}
	o.problems[what] = err.Error()
}

// Conditions returns what is wrong.
func (o *Offload) Conditions() (all condition.List) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.chosen && o.provider == "" {
		all = append(all, condition.OffloadUnavailable.New("%s", o.why))
	}
	if n := o.flows.withoutRoom(); n > 0 {
		all = append(all, condition.OffloadFull.New("the flow cache has had no room for %d directions of flows in the last five minutes: raise --offload-max-flows", n))
	}
	if legacy := o.rules.legacy(); len(legacy) > 0 && !o.config.IgnoreFilters {
		all = append(all, condition.OffloadLegacyRules.New("%s", strings.Join(legacy, "; ")))
	}
	for _, what := range slices.Sorted(maps.Keys(o.problems)) {
		all = append(all, condition.OffloadFailed.New("%s: %s", what, o.problems[what]))
	}
	for _, device := range slices.Sorted(maps.Keys(o.refused)) {
		all = append(all, condition.OffloadDeviceRefused.New("%s: %s", device, o.refused[device]))
	}
	return all
}

// Close frees what flow offload needs of this process. Flows go on.
func (o *Offload) Close() {
	if o.flows != nil {
		o.flows.Close()
	}
	o.rules.watcher.Close()
}
