// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net/netip"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/wakeup"
)

// New returns the edge. It is enabled unless --edge-mode=off.
func New() *component.Component {
	c := &config{}
	programs := bpf.Edge(c.datapathOptions)
	return &component.Component{
		Name: programs.Name, BPF: programs,
		AddFlags: c.addFlags, Complete: c.complete, Check: c.check, Effective: c.effective, New: c.run,
		ReadPins: readPins, Cleanup: removeOwnEntries,
	}
}

// off reports whether the edge is disabled.
func (c *config) off() bool { return c.edge.Mode == Off }

// check reports an edge that was requested but is disabled.
func (c *config) check() condition.List {
	if c.noEdge != "" {
		return condition.List{condition.EdgeOff.New("%s", c.noEdge)}
	}
	if c.off() {
		return nil
	}
	return CheckPatterns(c.edge.Devices)
}

// datapathOptions are the options of the edge in the datapath; nil: it is disabled.
func (c *config) datapathOptions() *bpf.EdgeOptions {
	if c.off() {
		return nil
	}
	return &bpf.EdgeOptions{
		SNATPorts: c.ports, Timeouts: c.timeouts.Datapath(), ICMPRate: &c.icmpRate,
		AcceptDSR: c.dsrAccept != acceptNever, LateXDP: !MayEnterXDP(c.edge),
	}
}

// running is a running edge.
type running struct {
	*config
	env       component.Env
	edge      *Edge
	conntrack *conntrack.Collector
	traffic   *traffic
	forwarded forwarded
	served    served
	optOuts   *service.OptOuts
	// udpRemoved: backends of UDP Services may have been removed.
	udpRemoved wakeup.Signal
}

// run starts the edge. If the edge is disabled, it rebuilds the prefilter, and reports why.
func (c *config) run(env component.Env) (*component.Instance, error) {
	if c.noEdge != "" {
		condition.EdgeOff.Log(env.Log, c.noEdge)
	}
	if err := env.Syncer.AcceptTunnels(c.acceptsTunnels() != ""); err != nil {
		return nil, err
	}
	r := &running{config: c, env: env, forwarded: newForwarded(), served: served{}, optOuts: service.NewOptOuts(env.Node), udpRemoved: wakeup.NewSignal()}
	if c.off() {
		return r.instanceOff(), nil
	}
	config := c.edge
	config.Network, config.Destinations, config.SNATPorts, config.Log = env.Network, env.Syncer, c.ports, env.Log
	counters := func() (map[string]uint64, error) { return bpf.ReadEdgeCounters(env.BPFFS) }
	config.Counters = counters
	datapath := bpf.NewEdgeKernel(env.Datapath, c.dispatcher)
	tables := conntrack.TablesOf(env.Datapath.ConntrackMaps())
	r.traffic = &traffic{
		counters: func() (map[uint32]bpf.ServiceCounters, error) { return bpf.ReadServiceCounters(env.BPFFS) },
		names:    env.Datapath.Tables.Services.All, drops: datapath.PolicyDrops().All, backends: c.metricsBackends,
	}
	r.edge = newEdge(datapath, tables, config)
	r.conntrack = conntrack.NewCollector(tables, env.Datapath.WaitForReaders, conntrack.Config{
		Timeouts: c.timeouts, Serves: env.Serves, Log: env.Log,
		Counters:   counters,
		Reconciled: func(took time.Duration, deleted conntrack.Deleted) { env.Metrics.Reconciled(took, deleted) },
		Wanted:     env.Datapath.Prefilter().Wanted(),
	}, env.Syncer.PrefilterWalk(), env.Syncer.SlotGC(c.establishedTimeout), r.edge.FlowRefs(), r.traffic)
	return &component.Instance{
		Objects: func(changes []service.Change) { r.optOuts.Apply(changes) },
		Prepare: r.prepare, Apply: r.apply, Start: r.start, BackendsRemoved: r.backendsRemoved, Repair: r.repair, Audit: r.audit,
		Run:    []component.Task{{Name: "edge", Run: r.edge.Run}, {Name: "conntrack", Run: r.conntrack.Run}, {Name: "kernel room", Run: r.renewKernelRoom}, {Name: "kernel UDP", Run: r.deleteStaleKernelUDP}},
		Status: r.status, Conditions: r.conditions, Metrics: r.metrics,
	}, nil
}

// establishedTimeout returns the conntrack timeout of established flows of a protocol.
func (c *config) establishedTimeout(p service.Protocol) time.Duration {
	return c.timeouts.Established(uint8(p))
}

// prepare attaches the programs to the devices that packets arrive at once the change is in effect.
func (r *running) prepare(change service.Delta) {
	r.edge.SetNode(r.env.Cluster.OwnAddresses())
	r.edge.SetPods(r.packetPathPods())
	r.edge.Reach(remoteBackends(change))
}

func (r *running) apply(change service.Delta) {
	r.forwarded.note(change, r.env.Cluster.LocalAddresses())
	r.edge.Forward(r.forwarded.all.families(), r.forwarded.decapsulated.families())
	if r.served.note(change) {
		r.edge.SetServed(r.served.addresses())
	}
	r.edge.DSRChanged(goesByDSR(change))
	r.traffic.change(change)
}

func (r *running) start() {
	r.edge.Start()
	r.conntrack.Start()
}

func (r *running) backendsRemoved(udp, _ bool) {
	r.conntrack.BackendsChanged(udp)
	if udp {
		r.udpRemoved.Send()
	}
}

func (r *running) repair() []string {
	if !r.edge.Detached() {
		return nil
	}
	return r.edge.Repair()
}

// audit also finds damage that does not show in the state of links.
func (r *running) audit() ([]string, error) { return r.edge.Repair(), nil }

// packetPathPods returns the pods of this node that the edge serves at their own devices: those that opted out
// of the socket shortcut, and all pods if a Service needs it.
func (r *running) packetPathPods() []netip.Prefix {
	if r.env.Cluster.NeedsPackets() {
		return r.env.Cluster.PodNetworks()
	}
	var all []netip.Prefix
	for _, pod := range r.optOuts.Pods() {
		for _, ip := range pod.IPs {
			if ip.IsValid() {
				all = append(all, netip.PrefixFrom(ip, ip.BitLen()))
			}
		}
	}
	return all
}

func (r *running) status(s *api.Status) {
	tunnels, option := r.env.Syncer.Accepted()
	s.DSRAccepted = r.dsrAccepted(tunnels, option, s.Counts.DSRServices)
	s.UntrackedSlots = r.env.Syncer.SlotUsage(r.establishedTimeout)
	r.edge.CountDrops()
	s.Edge = r.edge.CompleteStatus(s.Edge)
	if s.Edge.Conntrack.Limit == 0 { // not counted
		passes := r.conntrack.Passes()
		s.Edge.Conntrack = passes.Status()
	}
	s.Edge.Problems = append(s.Edge.Problems, r.conntrack.CompleteStatus(&s.Edge.Conntrack, s.Edge.Counters)...)
	s.ComponentConditions = append(s.ComponentConditions, Conditions(s.Edge)...)
}
