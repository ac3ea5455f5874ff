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

// Table holds the objects of a cluster as one node sees them, and the plan of
// each object that has one. What it holds after a series of changes depends on
// the objects that are left, not on the order in which they came; but a Service
// whose annotations about health become wrong keeps the check that it had (H5),
// and this node the facts of its deleted Node object (R39).
//
// It is told nothing before the objects of all kinds are known (R4); the source
// sees to that. A Table is for one goroutine. What it returns must not be
// altered, and stays as it is while the Table goes on.
type Table struct {
	config   Config
	services map[Ref]*Service
	// slices has the EndpointSlices that count, and byService the same by the Ref
	// of their Service, sorted by name.
	slices    map[Ref]*EndpointSlice
	byService map[Ref][]*EndpointSlice
	// pods has those of this node with hostPorts that live.
	pods map[Ref]*Pod
	// podAddrs has the addresses of all Pods that are not the host's.
	podAddrs map[Ref][]netip.Addr
	// nodes are those that there are, and this node's last one, though it be deleted (R39).
	nodes      map[string]*Node
	ownDeleted bool
	cidrs      map[string]*ServiceCIDR

	// interfaces is what SetLocalAddresses was told, nodeAddrs how many Nodes and
	// interfaces have each address; node is what resolving reads of both.
	interfaces []netip.Addr
	nodeAddrs  map[netip.Addr]int
	guarded    guarded
	node       nodeFacts
	// server are the addresses that SetServer was told last, those before it counted.
	server, serverBefore []netip.Addr

	serviceCIDRs []netip.Prefix
	podNetworks  []netip.Prefix
	balancers    []netip.Prefix
	claims       claims
	owners       map[Ref]*owner
	// ownRestricted counts the plans with a frontend that has OwnAddress.
	ownRestricted int
	health        health
}

// NewTable returns a Table without objects.
func NewTable(config Config) *Table {
	t := &Table{
		config:    config,
		services:  map[Ref]*Service{},
		slices:    map[Ref]*EndpointSlice{},
		byService: map[Ref][]*EndpointSlice{},
		pods:      map[Ref]*Pod{},
		podAddrs:  map[Ref][]netip.Addr{},
		nodes:     map[string]*Node{},
		cidrs:     map[string]*ServiceCIDR{},
		nodeAddrs: map[netip.Addr]int{},
		guarded:   guarded{counts{}, counts{}},
		claims:    newClaims(),
		owners:    map[Ref]*owner{},
		health:    newHealth(),
	}
	t.podNetworks = sortedPrefixes(slices.Clone(config.PodNetworks))
	t.balancers = sortedPrefixes(slices.Clone(config.Balancers))
	t.node = newNodeFacts(&t.config, t.nodes, nil, t.nodeAddrs)
	return t
}

// Apply takes over a batch of changes as one step. Of several changes to one
// object the last counts.
func (t *Table) Apply(changes []Change) Delta {
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

// batch is what a step alters.
type batch struct {
	// dirty objects are resolved again.
	dirty map[Ref]struct{}
	// thisNode, serviceCIDRs, podCIDRs, podAddrs, nodes: there may be a change.
	thisNode, serviceCIDRs, podCIDRs, podAddrs, nodes bool
	// renumbered are Nodes that others reach at another address than before.
	renumbered map[string]bool
	// knew says of each address counted up or down whether some node had it before; guarded
	// and servers say so of Table.guarded.
	knew, guarded, servers map[netip.Addr]bool
}

func newBatch() *batch {
	return &batch{dirty: map[Ref]struct{}{}, renumbered: map[string]bool{},
		knew: map[netip.Addr]bool{}, guarded: map[netip.Addr]bool{}, servers: map[netip.Addr]bool{}}
}

// set stores an object by its key, or removes it if it is nil.
func set[K comparable, T any](m map[K]T, key K, object Object) {
	if o, ok := object.(T); ok {
		m[key] = o
	} else {
		delete(m, key)
	}
}

func (t *Table) setService(b *batch, c Change) {
	set(t.services, c.Ref, c.Object)
	t.health.setCheck(c.Ref, t.services[c.Ref])
	b.dirty[c.Ref] = struct{}{}
}

func (t *Table) setSlice(b *batch, c Change) {
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
	// R2, R5: what is headless, or of an address type that is no family, does not
	// count.
	s, ok := c.Object.(*EndpointSlice)
	if !ok || s.Headless || s.Family == 0 {
		return
	}
	t.slices[c.Ref] = s
	t.countServers(b, s, 1)
	ref := s.serviceRef()
	i, _ := slices.BinarySearchFunc(t.byService[ref], s.Name, byName)
	t.byService[ref] = slices.Insert(t.byService[ref], i, s)
	b.dirty[ref] = struct{}{}
}

// serviceRef is the Ref of the Service that the slice belongs to.
func (s *EndpointSlice) serviceRef() Ref { return Ref{KindService, s.Namespace, s.Service} }

func (t *Table) setPod(b *batch, c Change) {
	pod, _ := c.Object.(*Pod)
	t.notePodAddresses(b, c.Ref, pod)
	if p, ok := c.Object.(*Pod); ok && !hasHostPorts(p, t.config.NodeName) {
		c.Object = nil
	}
	set(t.pods, c.Ref, c.Object)
	b.dirty[c.Ref] = struct{}{}
}

// commit resolves what the batch made dirty and lets the claims settle.
func (t *Table) commit(b *batch) Delta {
	t.updateNode(b)
	d := Delta{
		Plans: map[Ref]*Plan{}, ServiceCIDRs: t.updateServiceCIDRs(b), PodNetworks: t.updatePodNetworks(b), Balancers: t.updateBalancers(b),
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
		if t.award(o) {
			d.Plans[o.ref] = o.plan
		}
	}
	return d
}

// award updates the plan of an owner from its claims and says whether it is
// another now.
func (t *Table) award(o *owner) bool {
	plan := t.claims.award(o)
	if plan == nil {
		delete(t.owners, o.ref)
	}
	if !equalPlans(o.plan, plan) {
		t.ownRestricted += restrictsOwn(plan) - restrictsOwn(o.plan)
		o.plan = plan
		return true
	}
	if plan == o.wanted {
		// One copy is enough.
		o.wanted = o.plan
	}
	return false
}

// restrictsOwn is 1 if a plan has a frontend with OwnAddress.
func restrictsOwn(p *Plan) int {
	if p != nil && slices.ContainsFunc(p.Frontends, func(f Frontend) bool { return f.OwnAddress }) {
		return 1
	}
	return 0
}

// RestrictsOwnAddress says whether some frontend at an address of this node admits
// only some sources.
func (t *Table) RestrictsOwnAddress() bool { return t.ownRestricted > 0 }

// resolve computes what an object wants; exists is false if it is gone.
func (t *Table) resolve(ref Ref) (wanted *Plan, created time.Time, exists bool) {
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

// Owners yields the objects that have plans, in the order of their Refs.
func (t *Table) Owners() iter.Seq2[Ref, *Plan] {
	return func(yield func(Ref, *Plan) bool) {
		for _, ref := range slices.SortedFunc(maps.Keys(t.owners), Ref.Compare) {
			if !yield(ref, t.owners[ref].plan) {
				return
			}
		}
	}
}
