// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/report/metrics"
)

// config is the configuration of the pod shortcut.
type config struct {
	devices       component.Devices
	ignoreFilters bool
	filterAge     time.Duration
}

// New returns the pod shortcut. It is enabled by --pod-devices.
func New() *component.Component {
	c := &config{}
	programs := Programs(c.enabled)
	return &component.Component{Name: programs.Name, BPF: programs, AddFlags: c.addFlags, Complete: c.complete, New: c.run}
}

// NewNetkit returns the part of the pod shortcut at netkit devices, and NewL3 that at devices without MAC addresses.
// The pod shortcut enables and runs both.
func NewNetkit() *component.Component { return part(NetkitPrograms()) }
func NewL3() *component.Component     { return part(L3Programs()) }

func part(programs *bpf.Component) *component.Component {
	return &component.Component{Name: programs.Name, BPF: programs}
}

// Bounds of --pod-filter-age. Searches are 5 seconds apart, and an upgrade of the agent must not end the shortcut.
const (
	defaultFilterAge = 30 * time.Second
	minFilterAge     = 10 * time.Second
	maxFilterAge     = time.Hour
)

func (c *config) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar((*[]string)(&c.devices), "pod-devices", []string{component.Off}, "devices of pods between which packets skip the node's IP stack, and with it netfilter: off, auto (all that lead to a pod alone), or names and shell patterns")
	fs.BoolVar(&c.ignoreFilters, "pod-ignore-filters", false, "let packets between pods skip the node's IP stack even where a packet filter, a queue or another BPF program at the device would see them there; these then have no effect on them")
	fs.DurationVar(&c.filterAge, "pod-filter-age", defaultFilterAge, fmt.Sprintf("age of the last complete search for packet filters from which on packets between pods take the stack: how long a rule may have no effect on them if the agent is dead or hangs (%v to %v)", minFilterAge, maxFilterAge))
}

// enabled reports whether the flags ask for the shortcut.
func (c *config) enabled() bool { return c.devices.Enabled() }

func (c *config) complete(services *service.Config) error {
	if p, invalid := c.devices.Invalid(); invalid {
		return fmt.Errorf("--pod-devices %q: %s, %s, or names and shell patterns of devices", p, component.Auto, component.Off)
	}
	if c.enabled() && !services.Edge {
		return fmt.Errorf("--pod-devices has no effect with --edge-mode=off, whose tables tell which flows take the stack: remove one of them")
	}
	if c.ignoreFilters && !c.enabled() {
		return fmt.Errorf("--pod-ignore-filters has no effect with --pod-devices=off: remove one of them")
	}
	if c.filterAge < minFilterAge || c.filterAge > maxFilterAge {
		return fmt.Errorf("--pod-filter-age %v: between %v and %v", c.filterAge, minFilterAge, maxFilterAge)
	}
	return nil
}

// running is a running pod shortcut.
type running struct {
	env      component.Env
	shortcut *Shortcut
}

func (c *config) run(env component.Env) (*component.Instance, error) {
	if !c.enabled() {
		return &component.Instance{}, nil
	}
	if reason := env.Datapath.Unavailable[ComponentName]; reason != "" {
		condition.PodShortcutFailed.Log(env.Log, reason)
		return &component.Instance{
			Status:     func(s *api.Status) { s.Pods = &api.Pods{Unavailable: reason} },
			Conditions: func() condition.List { return condition.List{condition.PodShortcutFailed.New("%s", reason)} },
		}, nil
	}
	r := &running{env, newShortcut(kernel{Datapath: env.Datapath}, Config{Network: env.Network, Devices: c.devices.Patterns(), IgnoreFilters: c.ignoreFilters, Lease: c.filterAge, Log: env.Log})}
	return &component.Instance{
		Apply: r.apply, Start: r.shortcut.Start,
		Run:    []component.Task{{Name: "pods", Run: r.shortcut.Run}},
		Status: r.status, Conditions: r.shortcut.Conditions, Metrics: r.metrics,
	}, nil
}

func (r *running) apply(service.Delta) {
	r.shortcut.SetNetworks(r.env.Cluster.PodNetworks())
}

func (r *running) status(s *api.Status) {
	status := r.shortcut.Status()
	status.Packets, _ = ReadCounters(r.env.BPFFS)
	s.Pods = &status
}

func (r *running) metrics() ([]api.Metric, error) {
	packets, err := ReadCounters(r.env.BPFFS)
	if err != nil {
		return nil, err
	}
	b := metrics.NewBatch()
	for path, n := range packets {
		b.Add("beeline_pod_shortcut_packets_total", float64(n), "path", path)
	}
	status := r.shortcut.Status()
	pods, withheld := status.Addresses()
	b.Add("beeline_pod_shortcut_addresses", float64(pods), "state", "shortcut")
	b.Add("beeline_pod_shortcut_addresses", float64(withheld), "state", "stack")
	return b.Metrics, nil
}
