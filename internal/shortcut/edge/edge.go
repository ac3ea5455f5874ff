// SPDX-License-Identifier: Apache-2.0

// Package edge serves clients outside the cluster, and pods without the socket shortcut: it selects the
// devices that they are behind and those that lead to backends, and attaches the datapath there. As a component of the
// agent it also runs connection tracking (internal/conntrack).
package edge

import (
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/xdpdispatch"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/wakeup"
)

// Mode is the mode of the edge.
type Mode string

const (
	Auto Mode = "auto" // native XDP where the driver supports it, else tc
	XDP  Mode = "xdp"
	TC   Mode = "tc"
	Off  Mode = "off"
)

// Modes are all modes, as flag values.
var Modes = []string{string(Auto), string(XDP), string(TC), string(Off)}

// Config is the operator's configuration.
type Config struct {
	Mode Mode
	// Generic uses generic XDP.
	Generic bool
	// Devices are names or shell patterns; if empty, devices are detected.
	Devices []string
	// Network is that of the node.
	Network *node.Network
	// Destinations are the backends on other nodes; nil: there are none.
	Destinations Destinations
	// SetSysctls enables setting the sysctls that the kernel needs to forward packets.
	SetSysctls bool
	// SNATPorts are those from which packets are sent to backends on other nodes.
	SNATPorts []bpf.PortRange
	// Counters reads the edge's counters of packets by reason (bpf.ReadEdgeCounters).
	Counters func() (map[string]uint64, error)
	Log      *slog.Logger
}

// Destinations tells which backends on other nodes the tables have. The methods must not call the edge.
type Destinations interface {
	// RemoteBackends returns the addresses of backends on other nodes and of those nodes, sorted.
	RemoteBackends() []netip.Addr
	// RemotePorts returns the ports of backends on other nodes, each once.
	RemotePorts() []uint16
	// DSRDestinations returns the addresses that packets are sent to by DSR, of backends on other nodes
	// or of those nodes, by the kind of DSR.
	DSRDestinations() map[service.DSR][]netip.Addr
	// ServicesOf returns the objects that have a backend at an address, in order.
	ServicesOf(backend netip.Addr) []service.Ref
}

// Datapath is what the edge needs of package bpf.
type Datapath interface {
	AttachEdgeTC(device int) error
	AttachEdgeXDP(device int, mode bpf.XDPMode) ([]xdpdispatch.ChainProgram, error)
	DetachEdge(device int, hooks ...bpf.EdgeHook) error
	EdgeAttachments() ([]bpf.EdgeAttachment, error)
	EdgeDevices() bpf.Hash[uint32, bpf.EdgeDevice]
	NextHops() bpf.Hash[bpf.NextHopKey, uint32]
	SetXFRMPolicies(bpf.XFRMPolicies) error
	Routings() bpf.Hash[uint32, bpf.Routing]
	RouteMTUs() bpf.Hash[bpf.RouteKey, uint32]
	RouteEncaps() bpf.Hash[bpf.NetworkKey, bpf.RouteEncap]
	BackendLosses() bpf.Hash[bpf.BackendLossKey, bpf.BackendLoss]
	WaitForReaders() error
	Prefilter() *bpf.Prefilter
}

// Edge keeps the programs attached to the devices. All methods may be called from any goroutine.
type Edge struct {
	config   Config
	datapath Datapath
	flows    *conntrack.Tables
	read     func(backends []netip.Addr) ([]Device, error)
	deviceTo func(netip.Addr) (device int, err error)
	lost     func(device string) uint64 // netdev.XDPLosses
	policies func() ([]node.XFRMPolicy, error)
	routing  func() (node.Routing, error)

	changed wakeup.Signal // devices, addresses or routes
	// hasRoutes: there are routes that look-ups do not tell all of.
	hasRoutes atomic.Bool

	mu             sync.Mutex
	ready          bool // the tables are complete
	node           []netip.Addr
	pods           []netip.Prefix
	served         []netip.AddrPort   // addresses and ports of Services, sorted
	remoteBackends refSet[netip.Addr] // backends on other nodes: of Services, and of existing flows
	entered        refSet[int]        // devices of clients and pods: those selected, and those of existing flows
	devices        map[int]*attached
	problems       condition.List   // not of one device
	logged         condition.List   // of the last reconcile: each is logged once while it lasts
	withheld       condition.List   // XFRM policies, and that they are not known
	withheldDrops  condition.Growth // packets dropped for XFRM policies
	bypassed       condition.List   // packet filters that the edge's packets bypass
	routed         condition.List   // routes and rules that look-ups do not tell all of, or that are not known
	drops          drops
	unusable       []node.Route // by which the edge cannot send, as last read
	tables         map[uint32]bpf.EdgeDevice
	nextHops       map[bpf.NextHopKey]uint32
	dsr            []api.EdgeDSR
	// forwards are the families whose packets the kernel must forward, decapsulates those of which it must if
	// packets were dropped for that. forwarding are the conditions that were logged of sysctls that prevent it,
	// last for the families notForwarded. sysctls is the directory of these.
	forwards     []service.Family
	decapsulates []service.Family
	forwarding   condition.List
	notForwarded []service.Family
	sysctls      string
	// forwardingDrops are the packets that were dropped for them.
	forwardingDrops condition.Growth
}

// attached is a device and how the edge is attached to it.
type attached struct {
	Device
	entry  entry
	chain  []xdpdispatch.ChainProgram // it shares the XDP hook with others
	failed error                      // it is not
	losses losses
}

// newEdge returns an edge. flows are the conntrack tables of the datapath. Start attaches it.
func newEdge(d Datapath, flows *conntrack.Tables, c Config) *Edge {
	return &Edge{
		config: c, datapath: d, flows: flows,
		read:     func(backends []netip.Addr) ([]Device, error) { return readDevices(c.Network, backends) },
		deviceTo: netdev.DeviceTo, lost: netdev.XDPLosses,
		policies: c.Network.XFRMPolicies, routing: c.Network.Routing, changed: wakeup.NewSignal(),
		devices: map[int]*attached{}, sysctls: netdev.SysctlRoot,
	}
}

// Start attaches the edge to its devices; from now on it follows their changes.
func (e *Edge) Start() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ready = true
	e.writePolicies()
	routing, err := e.routing()
	e.writeRouting(&routing, err)
	if err := e.noteEarlier(); err != nil {
		e.config.Log.Error("replies of an earlier agent's flows may be lost", "error", err)
	}
	e.reconcile(false)
}

// SetNode sets the addresses of the Node object, in its order.
func (e *Edge) SetNode(addresses []netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Equal(e.node, addresses) {
		e.node = slices.Clone(addresses)
		e.changed.Send()
	}
}

// SetPods sets the networks of this node's pods whose packets to the node's own addresses the edge must
// serve: no socket hook handles them, and packets that stay on the node do not pass the devices of clients.
// When it returns, the edge is attached to the devices of new pods: from then on their sockets may be left
// to it. It stays attached to the devices of others while flows that began there continue (R30).
func (e *Edge) SetPods(networks []netip.Prefix) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.Equal(e.pods, networks) {
		return
	}
	more := slices.ContainsFunc(networks, func(n netip.Prefix) bool { return !slices.Contains(e.pods, n) })
	e.pods = slices.Clone(networks)
	if more && e.ready {
		e.reconcile(false)
		return
	}
	e.changed.Send()
}

// SetServed sets the addresses and ports of Services, in order. They are not changed.
func (e *Edge) SetServed(all []netip.AddrPort) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.served = all
}

// Repair attaches what another program has detached, and returns what that was.
func (e *Edge) Repair() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.reconcile(true)
}

// reconcile attaches to and detaches from devices until they are as they should be. With audit it reads
// what is attached, and does not rely on what it did before.
func (e *Edge) reconcile(audit bool) (repaired []string) {
	e.logged, e.problems = e.problems, nil
	e.remoteBackends.add(e.servingBackends())
	devices, err := e.read(slices.SortedFunc(maps.Keys(e.remoteBackends.known), netip.Addr.Compare))
	if err != nil {
		e.report(condition.DevicesUnreadable.New("the devices of this node cannot be read; those known so far are served: %v", err))
		return nil
	}
	choosePods(devices, e.pods)
	e.entered.add(e.wantedDevices()) // the devices that were selected until now
	chosen := choose(devices, e.config.Devices, e.node, e.entered.known)
	e.noteDSR(devices, chosen)
	for _, pattern := range unmatched(devices, e.config.Devices) {
		e.report(whyUnmatched(devices, pattern))
	}
	if len(e.forwards) > 0 && len(e.config.Devices) == 0 && !slices.ContainsFunc(chosen, func(d Device) bool { return d.Clients }) {
		e.report(condition.NoDeviceWithClients.New("external clients reach no Service: no device that can be served has a default route or an address of this Node").
			Do("set --devices to those that clients are behind (%s)", present(devices)))
	}
	if audit {
		repaired = e.findDetached()
	}
	e.writeDevices(ownAddresses(devices, chosen, e.node), nextHopsOf(devices), audit)
	keep := map[int]bool{}
	for _, d := range chosen {
		keep[d.Index] = true
		e.attach(d)
	}
	e.detachOthers(keep)
	e.datapath.Prefilter().SetProgramsCurrent(e.attachedEverywhere())
	e.noteForwarding()
	return repaired
}

// attachedEverywhere reports whether this agent's programs are attached to all devices. The caller holds
// the lock.
func (e *Edge) attachedEverywhere() bool {
	for _, a := range e.devices {
		if a.failed != nil {
			return false
		}
	}
	return e.ready
}

// report keeps a condition for the status until the next reconcile, and logs it if it is new.
func (e *Edge) report(c condition.Condition) {
	e.problems = append(e.problems, c)
	e.logNew(condition.List{c}, e.logged)
}

// logNew logs the conditions that were not there before.
func (e *Edge) logNew(all, before condition.List) {
	for _, c := range all {
		if !slices.Contains(before, c) {
			c.Log(e.config.Log, "the edge")
		}
	}
}

// writeDevices publishes the addresses that the edge sends from, and by which devices clients may come. What cannot be
// written of the latter counts as none.
func (e *Edge) writeDevices(want map[uint32]bpf.EdgeDevice, hops map[bpf.NextHopKey]uint32, audit bool) {
	complete := true
	write(e.datapath.NextHops(), &e.nextHops, hops, audit, func(_ *bpf.NextHopKey, err error) {
		if complete {
			e.report(condition.DeviceTableNotWritten.New("sources with several next hops are not validated as by the kernel: %v", err))
		}
		complete = false
	})
	for index, d := range want {
		if !complete {
			d.Sources &^= bpf.SourcesMultipath
			want[index] = d
		}
	}
	write(e.datapath.EdgeDevices(), &e.tables, want, audit, func(index *uint32, err error) {
		if index == nil {
			e.report(condition.DeviceTableNotWritten.New("the addresses of devices cannot be read: %v", err))
			return
		}
		e.report(condition.DeviceTableNotWritten.New("the addresses of device %d: %v", *index, err).At(deviceName(int(*index))))
	})
}

// write makes a table equal to want. have is what it has; with audit, or if that is not known, it is read. failed is
// called with each key that could not be written, and with nil if the table cannot be read.
func write[K, V comparable](table bpf.Hash[K, V], have *map[K]V, want map[K]V, audit bool, failed func(*K, error)) {
	if *have == nil || audit {
		all, err := table.All()
		if err != nil {
			failed(nil, err)
			return
		}
		*have = all
	}
	for key, value := range want {
		if before, ok := (*have)[key]; ok && before == value {
			continue
		}
		if err := table.Put(key, value); err != nil {
			failed(&key, err)
			continue
		}
		(*have)[key] = value
	}
	for key := range *have {
		if _, ok := want[key]; ok {
			continue
		}
		if err := table.Delete(key); err != nil {
			failed(&key, err)
			continue
		}
		delete(*have, key)
	}
}
