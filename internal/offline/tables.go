// SPDX-License-Identifier: Apache-2.0

// Package offline reads what is known without an agent: the contents of the pinned tables, and the state of what is
// pinned and attached. An agent answers with the same (package api), and adds what it alone knows.
package offline

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// Scope selects a part of the tables; the zero value selects all.
type Scope struct {
	// Service selects one object by namespace/name, or by name in any namespace.
	Service string
	// Outline omits the backends of frontends and, unless Owners is set, the Services of backends.
	Outline, Owners bool
}

// Wants reports whether the scope selects an object.
func (s Scope) Wants(ref service.Ref) bool {
	return s.Service == "" || s.Service == ref.Namespace+"/"+ref.Name || s.Service == ref.Name
}

// ReadTables reads all tables. It may see part of a concurrent change.
func ReadTables(t *bpf.Tables) (*api.Tables, error) {
	return ReadScope(context.Background(), t, Scope{})
}

// ReadScope reads the selected part, until ctx ends. Its time grows with the number of frontends and the total
// size of all sets, however many Services share a backend.
func ReadScope(ctx context.Context, t *bpf.Tables, scope Scope) (*api.Tables, error) {
	r := reader{ctx: ctx, scope: scope, tables: t, backends: map[uint32]*api.Backend{}, ranges: map[uint32][]string{}, sets: map[setKey][]api.Member{},
		stable: map[codec.Range][]uint32{}}
	index, err := t.Frontends.All()
	if err != nil {
		return nil, err
	}
	if r.names, err = t.Services.All(); err != nil {
		return nil, err
	}
	ranges, err := t.SourceRanges.All()
	if err != nil {
		return nil, err
	}
	for key := range ranges {
		r.ranges[key.SourceSet] = append(r.ranges[key.SourceSet], key.Prefix().String())
	}
	networks, err := t.Networks.All()
	if err != nil {
		return nil, err
	}
	all := &api.Tables{ServiceCIDRs: []string{}, PodNetworks: []string{}}
	if all.Services, err = r.services(index); err != nil {
		return nil, err
	}
	for key, network := range networks {
		switch network {
		case bpf.NetworkService:
			all.ServiceCIDRs = append(all.ServiceCIDRs, key.Prefix().String())
		case bpf.NetworkPod:
			all.PodNetworks = append(all.PodNetworks, key.Prefix().String())
		}
	}
	if all.BalancerNetworks, err = balancers(t); err != nil {
		return nil, err
	}
	slices.Sort(all.ServiceCIDRs)
	slices.Sort(all.PodNetworks)
	all.Backends = r.sortedBackends()
	return all, nil
}

func balancers(t *bpf.Tables) (all []string, err error) {
	if t.Balancers == nil {
		return nil, nil
	}
	networks, err := t.Balancers.All()
	for key, balancer := range networks {
		if balancer == bpf.IsBalancer {
			all = append(all, key.Prefix().String())
		}
	}
	slices.Sort(all)
	return all, err
}

type reader struct {
	ctx      context.Context
	scope    Scope
	tables   *bpf.Tables
	names    map[uint32]bpf.ServiceName
	ranges   map[uint32][]string
	backends map[uint32]*api.Backend
	sets     map[setKey][]api.Member // cache: most sets are used by several frontends
	stable   map[codec.Range][]uint32
}

type setKey struct {
	slots, members codec.Range
	owner          string
}

// row is an entry of the index with its owner.
type row struct {
	key     bpf.FrontendKey
	content codec.Frontend
	port    service.Port
}

// rows returns the frontends to read, grouped by object.
func (r *reader) rows(index map[bpf.FrontendKey]uint32) []row {
	all := make([]row, 0, len(index))
	ports := map[uint32]service.Port{}
	for key, number := range index {
		content, err := codec.LoadFrontend(r.tables, number)
		if err != nil {
			continue // changing, or damaged and repaired by the agent
		}
		port, known := ports[content.Port()]
		if !known {
			port = codec.PortOf(r.names[content.Port()])
			ports[content.Port()] = port
		}
		if r.scope.Wants(port.Owner) {
			all = append(all, row{key, content, port})
		}
	}
	slices.SortFunc(all, func(a, b row) int { return a.port.Owner.Compare(b.port.Owner) })
	return all
}

// checkEvery is the number of frontends between checks whether ctx has ended.
const checkEvery = 64

func (r *reader) services(index map[bpf.FrontendKey]uint32) (all []api.Service, err error) {
	all = []api.Service{}
	for i, row := range r.rows(index) {
		if i%checkEvery == 0 && r.ctx.Err() != nil {
			return nil, r.ctx.Err()
		}
		last := len(all) - 1
		if last < 0 || all[last].Ref() != row.port.Owner {
			owner := row.port.Owner
			all = append(all, api.Service{Kind: owner.Kind, Namespace: owner.Namespace, Name: owner.Name})
			last++
		}
		s := &all[last]
		s.Frontends = append(s.Frontends, r.frontend(row.key, &row.content, row.port))
		noteAlgorithm(s, &row.content)
	}
	for i := range all {
		slices.SortFunc(all[i].Frontends, compareFrontends)
	}
	return all, nil
}

// noteAlgorithm sets the algorithm from a row.
func noteAlgorithm(s *api.Service, row *codec.Frontend) {
	for class := range service.SourceClasses {
		switch slots := row.Slots(service.SourceClass(class)); {
		case slots.Count == 0:
		case row.Maglev():
			s.Algorithm, s.MaglevTableSize = service.Maglev, slots.Count
		default:
			s.Algorithm = service.Random
		}
	}
}

// compareFrontends orders by kind first: the ClusterIP before addresses derived from it.
func compareFrontends(a, b api.Frontend) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind),
		slices.Compare(a.Key.Address.Bytes[:], b.Key.Address.Bytes[:]),
		cmp.Compare(bpf.NetworkOrder(a.Key.Port), bpf.NetworkOrder(b.Key.Port)),
		cmp.Compare(a.Protocol, b.Protocol))
}

func (r *reader) frontend(key bpf.FrontendKey, row *codec.Frontend, port service.Port) api.Frontend {
	f := api.Frontend{
		Address:         key.Address.Addr().String(),
		Protocol:        service.Protocol(key.Protocol),
		Kind:            row.Kind(),
		Port:            port.Name,
		ServiceID:       row.Port(),
		AffinitySeconds: row.AffinitySeconds(),
		Restricted:      row.SourceSet() != 0,
		DSR:             codec.DSROf(row.DSR()),
		SourceRanges:    slices.Sorted(slices.Values(r.ranges[row.SourceSet()])),
		Key:             key,
		LoopbackExact:   row.LoopbackExact(),
		OwnAddress:      row.OwnAddress(),
	}
	if key.Port != 0 {
		f.Address = netip.AddrPortFrom(key.Address.Addr(), bpf.NetworkOrder(key.Port)).String()
	}
	owner := port.Owner.Namespace + "/" + port.Owner.Name
	lists := row.Lists()
	for i, d := range []*api.Decision{&f.FromPods, &f.FromNode, &f.FromOutside} {
		class := service.SourceClass(i)
		*d = api.Decision{Verdict: row.Verdict(class).String(), Masquerade: row.Masquerades(class),
			Backends: r.set(row.Slots(class), lists.Members[class], owner)}
	}
	f.RetainedBackends = r.set(lists.Retained, lists.Retained, owner)
	if row.Untracked() && row.HasHistory() && (!r.scope.Outline || r.scope.Owners) {
		f.StableBackends = r.stableMembers(lists)
	}
	return f
}

// set returns the backends of a set: its slots and its list of members.
func (r *reader) set(slots, members codec.Range, owner string) []api.Member {
	if slots.Count == 0 {
		return nil
	}
	if r.scope.Outline && !r.scope.Owners {
		owner = ""
	}
	key := setKey{slots, members, owner}
	if _, known := r.sets[key]; !known {
		if r.scope.Outline {
			r.noteMembers(members, owner)
			r.sets[key] = nil
		} else {
			r.sets[key] = r.members(slots, members, owner)
		}
	}
	return r.sets[key]
}
