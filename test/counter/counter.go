// SPDX-License-Identifier: Apache-2.0

// Package counter is a component that counts packets. It is not part of the product: it is an example of a
// component, and its test shows what the agent and the datapath do for one.
package counter

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/spf13/pflag"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/report/condition"
)

//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types Counter counter.bpf.c

const name = "counter"

// counter counts, by source, the packets that arrive at devices or leave a socket of the node and its pods.
type counter struct {
	devices    []string
	protocol   uint8
	maxSources uint32

	env component.Env

	mu     sync.Mutex
	failed error // of Start
}

// New returns the component. It is enabled if --counter-devices names devices.
func New() *component.Component {
	c := &counter{}
	limit := &bpf.Limit{Flag: "counter-max-sources", In: func(*bpf.Limits) *uint32 { return &c.maxSources }}
	return &component.Component{
		Name: name,
		BPF: &bpf.Component{
			Name: name, Objects: c.objects,
			Tables:      []bpf.Table{{Name: CounterMapPacketsBySource, Kind: bpf.StateTable, Limit: limit, Copy: bpf.CopyEntries}},
			Constants:   map[string]bpf.ConstantValue{CounterVarCountedProtocol: func(*bpf.Datapath) (any, error) { return c.protocol, nil }},
			CgroupHooks: []bpf.CgroupHook{{Name: "count_leaving", Program: CounterProgCountLeaving, Attach: ebpf.AttachCGroupInetEgress}},
			DeviceHooks: []bpf.DeviceHook{{Name: "xdp", Program: CounterProgCountArriving, Attach: ebpf.AttachXDP}},
		},
		AddFlags: c.addFlags, Complete: c.complete, New: c.run,
	}
}

func (c *counter) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&c.devices, "counter-devices", nil, "devices at which arriving packets are counted")
	fs.Uint8Var(&c.protocol, "counter-protocol", 17, "IP protocol of the packets to count")
	fs.Uint32Var(&c.maxSources, "counter-max-sources", 1024, "maximum number of sources to count")
}

func (c *counter) complete(*service.Config) error {
	if c.maxSources == 0 {
		return errors.New("--counter-max-sources 0: give 1 or more")
	}
	return nil
}

func (c *counter) objects(*bpf.Datapath) ([]*ebpf.CollectionSpec, error) {
	if len(c.devices) == 0 {
		return nil, nil
	}
	spec, err := LoadCounter()
	return []*ebpf.CollectionSpec{spec}, err
}

func (c *counter) run(env component.Env) (*component.Instance, error) {
	if len(c.devices) == 0 {
		return &component.Instance{}, nil
	}
	c.env = env
	return &component.Instance{Start: c.start, Status: c.status, Conditions: c.conditions, Metrics: c.metrics}, nil
}

// start attaches the program. The datapath keeps it attached.
func (c *counter) start() {
	var indexes []int
	var failed error
	for _, wanted := range c.devices {
		device, err := net.InterfaceByName(wanted)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("--counter-devices %s: %w", wanted, err))
			continue
		}
		indexes = append(indexes, device.Index)
	}
	failed = errors.Join(failed, c.env.Datapath.SetDevices(name, indexes...))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = failed
}

// counts reads the packets by source.
func (c *counter) counts() (map[netip.Addr]uint64, error) {
	counts := map[netip.Addr]uint64{}
	var source [4]byte
	var packets uint64
	it := c.env.Datapath.Map(CounterMapPacketsBySource).Iterate()
	for it.Next(&source, &packets) {
		counts[netip.AddrFrom4(source)] = packets
	}
	return counts, it.Err()
}

func (c *counter) status(s *api.Status) {
	counts, err := c.counts()
	devices, devicesErr := c.env.Datapath.Devices(name)
	state := "not readable"
	if errors.Join(err, devicesErr) == nil {
		var packets uint64
		for _, n := range counts {
			packets += n
		}
		state = fmt.Sprintf("packets %d, sources %d, devices %d", packets, len(counts), len(devices))
	}
	s.Components = append(s.Components, api.ComponentStatus{Name: name, State: state})
}

func (c *counter) conditions() (all condition.List) {
	c.mu.Lock()
	failed := c.failed
	c.mu.Unlock()
	if failed != nil {
		all = append(all, condition.DeviceNotServed.New("packets are not counted: %v", failed).At(strings.Join(c.devices, ",")))
	}
	if counts, err := c.counts(); err == nil && len(counts) >= int(c.maxSources) {
		all = append(all, condition.TableNearlyFull.New("table %s is full (%d sources)", CounterMapPacketsBySource, len(counts)).
			At(CounterMapPacketsBySource).Do("raise --counter-max-sources"))
	}
	return all
}

func (c *counter) metrics() (all []api.Metric, err error) {
	counts, err := c.counts()
	for source, n := range counts {
		all = append(all, api.Metric{
			Name: "beeline_counter_packets_total", Kind: api.CounterMetric, Help: "Packets that arrived or left, by source.",
			Labels: map[string]string{"source": source.String()}, Value: float64(n),
		})
	}
	return all, err
}
