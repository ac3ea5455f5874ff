// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/xdpdispatch"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/conntrack/conntracktest"
	"beeline.io/beeline/internal/node"
)

// fakeKernel is a datapath that records what is attached where.
type fakeKernel struct {
	hooks     map[int][]bpf.EdgeHook
	xdp       map[int]bpf.XDPMode
	refuse    map[int]error // XDP
	table     hash[uint32, bpf.EdgeDevice]
	nextHops  hash[bpf.NextHopKey, uint32]
	assured   conntracktest.Table
	attach    int // calls
	prefilter *bpf.Prefilter
	// written: the XFRM policies so far. readers: what WaitForReaders waits for; nil: nothing.
	written chan bpf.XFRMPolicies
	readers chan struct{}
	tcError error

	routings    hash[uint32, bpf.Routing]
	routeMTUs   hash[bpf.RouteKey, uint32]
	routeEncaps hash[bpf.NetworkKey, bpf.RouteEncap]
	losses      hash[bpf.BackendLossKey, bpf.BackendLoss]
	// routeMTUDeleted is called before an entry of routeMTUs is deleted; nil: nothing is.
	routeMTUDeleted func()
}

func newKernel() *fakeKernel {
	k := &fakeKernel{
		hooks: map[int][]bpf.EdgeHook{}, xdp: map[int]bpf.XDPMode{}, refuse: map[int]error{}, table: hash[uint32, bpf.EdgeDevice]{}, nextHops: hash[bpf.NextHopKey, uint32]{},
		assured: conntracktest.Table{},

		routings: hash[uint32, bpf.Routing]{}, routeMTUs: hash[bpf.RouteKey, uint32]{}, routeEncaps: hash[bpf.NetworkKey, bpf.RouteEncap]{},
		losses: hash[bpf.BackendLossKey, bpf.BackendLoss]{},
	}
	k.prefilter = bpf.NewPrefilter(new(bpf.EdgeTCPrefilter), func() error { return nil })
	return k
}

func (k *fakeKernel) AttachEdgeTC(device int) error {
	k.attach++
	if k.tcError != nil {
		return k.tcError
	}
	for _, h := range []bpf.EdgeHook{bpf.EdgeEgress, bpf.EdgeIngress} {
		if !slices.Contains(k.hooks[device], h) {
			k.hooks[device] = append(k.hooks[device], h)
		}
	}
	return nil
}

func (k *fakeKernel) AttachEdgeXDP(device int, mode bpf.XDPMode) ([]xdpdispatch.ChainProgram, error) {
	err := k.refuse[device]
	if err != nil && !errors.As(err, new(*bpf.ExclusiveXDPError)) {
		return nil, err
	}
	k.hooks[device], k.xdp[device] = append(k.hooks[device], bpf.EdgeXDP), mode
	return nil, err
}

func (k *fakeKernel) DetachEdge(device int, hooks ...bpf.EdgeHook) error {
	k.hooks[device] = slices.DeleteFunc(k.hooks[device], func(h bpf.EdgeHook) bool {
		return len(hooks) == 0 || slices.Contains(hooks, h)
	})
	return nil
}

func (k *fakeKernel) EdgeAttachments() (all []bpf.EdgeAttachment, _ error) {
	for device, hooks := range k.hooks {
		for _, h := range hooks {
			all = append(all, bpf.EdgeAttachment{Device: device, Hook: h})
		}
	}
	return all, nil
}

func (k *fakeKernel) EdgeDevices() bpf.Hash[uint32, bpf.EdgeDevice] { return k.table }
func (k *fakeKernel) NextHops() bpf.Hash[bpf.NextHopKey, uint32]    { return k.nextHops }
func (k *fakeKernel) Prefilter() *bpf.Prefilter                     { return k.prefilter }

func (k *fakeKernel) WaitForReaders() error {
	if k.readers != nil {
		<-k.readers
	}
	return nil
}

func (k *fakeKernel) SetXFRMPolicies(all bpf.XFRMPolicies) error {
	if k.written != nil {
		k.written <- all
	}
	return nil
}

func (k *fakeKernel) Routings() bpf.Hash[uint32, bpf.Routing] { return k.routings }
func (k *fakeKernel) RouteMTUs() bpf.Hash[bpf.RouteKey, uint32] {
	return deletes[bpf.RouteKey, uint32]{k.routeMTUs, k.routeMTUDeleted}
}
func (k *fakeKernel) RouteEncaps() bpf.Hash[bpf.NetworkKey, bpf.RouteEncap] {
	return k.routeEncaps
}

func (k *fakeKernel) BackendLosses() bpf.Hash[bpf.BackendLossKey, bpf.BackendLoss] {
	return k.losses
}

// hash is a table.
type hash[K comparable, V any] map[K]V

func (h hash[K, V]) Max() uint32        { return 64 }
func (h hash[K, V]) Put(k K, v V) error { h[k] = v; return nil }
func (h hash[K, V]) Delete(k K) error   { delete(h, k); return nil }
func (h hash[K, V]) All() (map[K]V, error) {
	all := map[K]V{}
	for k, v := range h {
		all[k] = v
	}
	return all, nil
}

// deletes is a hash that calls a function before it deletes an entry.
type deletes[K comparable, V any] struct {
	hash[K, V]
	before func()
}

func (d deletes[K, V]) Delete(k K) error {
	if d.before != nil {
		d.before()
	}
	return d.hash.Delete(k)
}

// A world is an edge with devices.
type world struct {
	*Edge
	t         *testing.T
	kernel    *fakeKernel
	devices   []Device
	collector *conntrack.Collector
	waited    int // how often the collector waited for programs
}

// destinations are the backends on other nodes.
type destinations struct {
	backends func() []netip.Addr
	dsr      map[service.DSR][]netip.Addr
	services map[netip.Addr][]service.Ref
}

func (d *destinations) RemoteBackends() []netip.Addr {
	if d.backends == nil {
		return nil
	}
	return d.backends()
}

func (d *destinations) DSRDestinations() map[service.DSR][]netip.Addr { return d.dsr }

func (d *destinations) RemotePorts() []uint16 { return nil }

func (d *destinations) ServicesOf(backend netip.Addr) []service.Ref { return d.services[backend] }

func newWorld(t *testing.T, c Config, devices ...Device) *world {
	w := &world{t: t, kernel: newKernel(), devices: devices}
	c.Network = new(node.Network)
	c.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	tables := &conntrack.Tables{Assured: w.kernel.assured, Unreplied: conntracktest.Table{}}
	w.Edge = newEdge(w.kernel, tables, c)
	w.collector = conntrack.NewCollector(tables, func() error { w.waited++; return nil },
		conntrack.Config{Timeouts: conntrack.DefaultTimeouts, Log: c.Log}, w.FlowRefs())
	w.Edge.routing = func() (node.Routing, error) { return node.Routing{}, nil }
	w.Edge.read = func([]netip.Addr) ([]Device, error) { return slices.Clone(w.devices), nil }
	w.node = nodeAddresses
	return w
}

// gc makes a GC pass.
func (w *world) gc() { w.collector.Collect() }

// want compares the status, one line for each device ("eth0 tc"), followed by conditions after an
// exclamation mark.
func (w *world) want(lines ...string) *api.Edge {
	w.t.Helper()
	s := w.CompleteStatus(nil)
	var got []string
	for _, d := range s.Devices {
		got = append(got, d.Name+" "+d.Mode)
	}
	for _, c := range Conditions(s) {
		got = append(got, "! "+c.String())
	}
	if !slices.EqualFunc(got, lines, func(got, want string) bool { return strings.HasPrefix(got, want) }) {
		w.t.Errorf("the edge is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
	return s
}

// attachedTo lists what is attached: "2 egress ingress xdp".
func (k *fakeKernel) attachedTo() (all []string) {
	for device, hooks := range k.hooks {
		if len(hooks) > 0 {
			all = append(all, strings.TrimSuffix(fmt.Sprintln(device, strings.Trim(fmt.Sprint(hooks), "[]")), "\n"))
		}
	}
	slices.Sort(all)
	return all
}

var nodeAddresses = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}

func addrs(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// The client and the backend of a flow.
const client, backend = "198.51.100.7:40000", "10.10.2.11:8080"

const (
	tcp = unix.IPPROTO_TCP
	udp = unix.IPPROTO_UDP
)
