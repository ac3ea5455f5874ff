// SPDX-License-Identifier: Apache-2.0

package service

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Cluster holds the objects of a cluster as seen by one node, and the plan of each object that has one. The
// state after a series of changes depends only on the remaining objects, not on their order, with two
// exceptions: a Service whose health check annotations become invalid keeps its previous check (H5), and this
// node keeps the state of its deleted Node object (R39).
//
// Its plans are complete when the source has delivered the objects of all kinds (R4). A Cluster is not safe for
// concurrent use. Callers must not modify returned values; later changes of the Cluster do not affect them.
type Cluster struct {
	config   Config
	services map[Ref]*Service
	// slices holds the EndpointSlices in use. byService holds the same by the Ref of their Service, sorted
	// by name.
	slices    map[Ref]*EndpointSlice
	byService map[Ref][]*EndpointSlice
	// pods holds the running Pods of this node with hostPorts.
	pods map[Ref]*Pod
	// podAddrs holds the addresses of all Pods outside the host network.
	podAddrs map[Ref][]netip.Addr
	// nodes holds the existing Nodes, and this node's last state even if its Node was deleted (R39).
	nodes      map[string]*Node
	ownDeleted bool
	cidrs      map[string]*ServiceCIDR

	// interfaces are the addresses of the last SetLocalAddresses. nodeAddrs counts the Nodes and interfaces
	// with each address. node combines both for resolving.
	interfaces []netip.Addr
	sockets    map[FrontendKey]bool // of the last SetNodeSockets
	nodeAddrs  map[netip.Addr]int
	protected  protectedAddrs
	node       nodeFacts
	// server holds the addresses of the last SetServer; serverBefore holds those that are already counted.
	server, serverBefore []netip.Addr

	serviceCIDRs []netip.Prefix
	podNetworks  []netip.Prefix
	balancers    []netip.Prefix
	claims       claims
	owners       map[Ref]*owner
	// byPacket counts the plans with a frontend that sockets of pods cannot decide about.
	byPacket int
	health   health
}

// NewCluster returns a Cluster without objects.
func NewCluster(config Config) *Cluster {
	t := &Cluster{
		config:    config,
		services:  map[Ref]*Service{},
		slices:    map[Ref]*EndpointSlice{},
		byService: map[Ref][]*EndpointSlice{},
		pods:      map[Ref]*Pod{},
		podAddrs:  map[Ref][]netip.Addr{},
		nodes:     map[string]*Node{},
		cidrs:     map[string]*ServiceCIDR{},
		nodeAddrs: map[netip.Addr]int{},
		protected: protectedAddrs{counts{}, counts{}},
		claims:    newClaims(),
		owners:    map[Ref]*owner{},
		health:    newHealth(),
	}
	t.podNetworks = sortedPrefixes(slices.Clone(config.PodNetworks))
	t.balancers = sortedPrefixes(slices.Clone(config.Balancers))
	t.node = newNodeFacts(&t.config, t.nodes, nil, t.nodeAddrs)
	return t
}

// Apply applies a batch of changes as one step. Of several changes to an object, the last one counts.
func (t *Cluster) Apply(changes []Change) Delta {
	b := newBatch()
	t.countServer(b)
	for _, c := range changes {
		switch c.Ref.Kind {
		case KindService:
			t.setService(b, c)
		case KindEndpointSlice:
			t.setSlice(b, c)
		case KindPod:
			t.setPod(b, c)
		case KindNode:
			t.setNode(b, c)
		case KindServiceCIDR:
			set(t.cidrs, c.Ref.Name, c.Object)
			b.serviceCIDRs = true
		}
	}
	return t.commit(b)
}

// batch collects the changes of a step.
type batch struct {
	// dirty objects are resolved again.
	dirty map[Ref]struct{}
	// thisNode, serviceCIDRs, podCIDRs, podAddrs and nodes mark what may have changed.
	thisNode, serviceCIDRs, podCIDRs, podAddrs, nodes bool
	triggers                                          []Trigger
	// renumbered holds Nodes whose address for other nodes has changed.
	renumbered map[string]bool
	// before records, for each address whose count changed, whether any node had it before; protected and
	// servers do the same for protectedAddrs.
	before, protected, servers map[netip.Addr]bool
}

func newBatch() *batch {
	return &batch{dirty: map[Ref]struct{}{}, renumbered: map[string]bool{},
		before: map[netip.Addr]bool{}, protected: map[netip.Addr]bool{}, servers: map[netip.Addr]bool{}}
}

// set stores an object by its key, or removes it if it is nil.
func set[K comparable, T any](m map[K]T, key K, object Object) {
	if o, ok := object.(T); ok {
		m[key] = o
	} else {
		delete(m, key)
	}
}

func (t *Cluster) setService(b *batch, c Change) {
	set(t.services, c.Ref, c.Object)
	t.health.setCheck(c.Ref, t.services[c.Ref])
	b.dirty[c.Ref] = struct{}{}
}

func (t *Cluster) setSlice(b *batch, c Change) {
	byName := func(s *EndpointSlice, name string) int { return strings.Compare(s.Name, name) }
	if old := t.slices[c.Ref]; old != nil {
		ref := old.serviceRef()
		all := t.byService[ref]
		if i, found := slices.BinarySearchFunc(all, old.Name, byName); found {
			all = slices.Delete(all, i, i+1)
		}
		if t.byService[ref] = all; len(all) == 0 {
			delete(t.byService, ref)
		}
		delete(t.slices, c.Ref)
		t.countServers(b, old, -1)
		b.dirty[ref] = struct{}{}
	}
	// Headless slices (R2), and slices whose address type is no IP family (R5), are ignored.
	s, ok := c.Object.(*EndpointSlice)
	if !ok || s.Headless || s.Family == 0 {
		return
	}
	t.slices[c.Ref] = s
	t.countServers(b, s, 1)
	ref := s.serviceRef()
	i, _ := slices.BinarySearchFunc(t.byService[ref], s.Name, byName)
	t.byService[ref] = slices.Insert(t.byService[ref], i, s)
	b.noteTrigger(s)
	b.dirty[ref] = struct{}{}
}

// serviceRef returns the Ref of the Service that the slice belongs to.
func (s *EndpointSlice) serviceRef() Ref { return Ref{KindService, s.Namespace, s.Service} }

func (t *Cluster) setPod(b *batch, c Change) {
	pod, _ := c.Object.(*Pod)
	t.notePodAddresses(b, c.Ref, pod)
	if p, ok := c.Object.(*Pod); ok && !hasHostPorts(p, t.config.NodeName) {
		c.Object = nil
	}
	set(t.pods, c.Ref, c.Object)
	b.dirty[c.Ref] = struct{}{}
}

// commit resolves the dirty objects and settles the claims.
func (t *Cluster) commit(b *batch) Delta {
	t.updateNode(b)
	d := Delta{
		Plans: map[Ref]*Plan{}, ServiceCIDRs: t.updateServiceCIDRs(b), PodNetworks: t.updatePodNetworks(b), Balancers: t.updateBalancers(b),
		Triggers: b.triggers,
	}
	concerned := make(map[*owner]struct{}, len(b.dirty))
	for ref := range b.dirty {
		wanted, created, exists := t.resolve(ref)
		if exists {
			d.Resolved++
		}
		o := t.owners[ref]
		if o == nil {
			if wanted == nil {
				continue
			}
			o = &owner{ref: ref}
			t.owners[ref] = o
		}
		t.claims.replace(o, wanted, created)
		concerned[o] = struct{}{}
	}
	for o := range t.claims.settle() {
		if _, resolved := concerned[o]; !resolved {
			concerned[o] = struct{}{}
			d.Resolved++
		}
	}
	d.Targets, t.health.changed = t.health.changed, false
	for o := range concerned {
		served := o.plan != nil && len(o.plan.Sets) > 0
		if t.award(o) {
			d.Plans[o.ref] = o.plan
			if served && o.plan != nil && len(o.plan.Sets) == 0 && o.ref.Kind == KindService {
				d.Lost = append(d.Lost, o.ref)
			}
		}
	}
	return d
}

// award updates the plan of an owner from its claims, and reports whether it changed.
func (t *Cluster) award(o *owner) bool {
	plan := t.claims.award(o)
	if plan == nil {
		delete(t.owners, o.ref)
	}
	if !equalPlans(o.plan, plan) {
		t.byPacket += needsPackets(plan) - needsPackets(o.plan)
		o.plan = plan
		return true
	}
	if plan == o.wanted {
		// Keep only one copy of equal plans.
		o.wanted = o.plan
	}
	return false
}

// needsPackets returns 1 if a plan has a frontend that sockets of pods cannot decide about: one with SourceRanges,
// because a socket has no source address at connect(), one whose packets are masqueraded, or one of SCTP, for which the
// kernel has no socket hooks.
func needsPackets(p *Plan) int {
	if p != nil && slices.ContainsFunc(p.Frontends, func(f Frontend) bool { return f.SourceRanges != nil || f.ByPacket || f.Key.Protocol == SCTP }) {
		return 1
	}
	return 0
}

// NeedsPackets reports whether there is a frontend that only packets of pods can decide about.
func (t *Cluster) NeedsPackets() bool { return t.byPacket > 0 }

// resolve computes the plan that an object wants; exists is false if the object is gone.
func (t *Cluster) resolve(ref Ref) (wanted *Plan, created time.Time, exists bool) {
	if p := t.pods[ref]; p != nil {
		return resolvePod(p, &t.node), p.Created, true
	}
	if s := t.services[ref]; s != nil {
		h := t.health.of(ref)
		wanted = resolveService(s, t.byService[ref], &t.config, &t.node, h)
		t.health.replace(ref, h.asked())
		return wanted, s.Created, true
	}
	t.health.replace(ref, nil)
	return nil, time.Time{}, false
}

// Owners iterates over the objects that have plans, in the order of their Refs.
func (t *Cluster) Owners() iter.Seq2[Ref, *Plan] {
	return func(yield func(Ref, *Plan) bool) {
		for _, ref := range slices.SortedFunc(maps.Keys(t.owners), Ref.Compare) {
			if !yield(ref, t.owners[ref].plan) {
				return
			}
		}
	}
}
