// SPDX-License-Identifier: Apache-2.0

// Package inspect provides views of the datapath: the contents of the tables, and the agent's state of each
// object. All of them have a JSON form, which the agent's socket serves and `-o json` prints.
package inspect

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/tables/reconcile"
	"beeline.io/beeline/internal/util/plural"
)

// Service is an object with its frontends.
type Service struct {
	// Kind is Service, or Pod for hostPorts.
	Kind      service.Kind `json:"kind"`
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	// State, Reasons, Problems and Refusals come from the agent; they are empty if the tables were read
	// from the pins.
	State     reconcile.State `json:"state,omitempty"`
	Reasons   []string        `json:"reasons,omitempty"`
	Problems  condition.List  `json:"problems,omitempty"`
	Refusals  []string        `json:"refusals,omitempty"`
	Frontends []Frontend      `json:"frontends"`
	// Algorithm is how backends are chosen; empty without backends. TableSize is the number of slots of
	// each Maglev table.
	Algorithm service.Algorithm `json:"algorithm,omitempty"`
	TableSize uint32            `json:"tableSize,omitempty"`
	// Counters are the edge's counters by port; nil without an edge.
	Counters []PortCounters `json:"counters,omitempty"`
	// Connections are the connections of sockets by port; nil without --socket-stats, or if there were none.
	Connections []PortConnections `json:"connections,omitempty"`
	// Draining are backends that get no new connections, and have remaining connections or are down. It is
	// set only if a single Service is read.
	Draining []Draining `json:"draining,omitempty"`
	// Health comes from the agent; nil without health checks.
	Health *Health `json:"health,omitempty"`
}

// Ref identifies the object.
func (s *Service) Ref() service.Ref {
	return service.Ref{Kind: s.Kind, Namespace: s.Namespace, Name: s.Name}
}

// Frontend is one address of a Service, as in the tables.
type Frontend struct {
	// Address is address:port, or only the address for all other ports.
	Address  string               `json:"address"`
	Protocol service.Protocol     `json:"protocol"`
	Kind     service.FrontendKind `json:"kind"`
	Port     string               `json:"port,omitempty"` // name of the service port
	// ServiceID is the ID of the service port in the tables.
	ServiceID       uint32   `json:"serviceID"`
	AffinitySeconds uint32   `json:"affinitySeconds,omitempty"`
	SourceRanges    []string `json:"sourceRanges,omitempty"`
	Restricted      bool     `json:"restricted,omitempty"` // only SourceRanges are admitted
	// DSR is how packets of clients outside the cluster reach backends on other nodes; empty for SNAT.
	DSR     service.DSR `json:"dsr,omitempty"`
	Pod     Decision    `json:"pod"`
	Node    Decision    `json:"node"`
	Outside Decision    `json:"outside"`
	// Retained are serving backends that are not in every set above: they keep their UDP flows.
	Retained []Member `json:"retained,omitempty"`
	// Stable are backends in no set above to which packets of clients without a conntrack entry may go (DSR with
	// Maglev): those of flows that began before the sets changed.
	Stable []Member `json:"stable,omitempty"`

	Key        bpf.FrontendKey `json:"-"`
	OneAddress bool            `json:"-"` // FlagOneAddress
	OwnAddress bool            `json:"-"` // FlagOwnAddress
}

// Decision is the verdict for one class of clients.
type Decision struct {
	Verdict    string `json:"verdict"`
	Masquerade bool   `json:"masquerade,omitempty"`
	// Backends is shared by decisions with the same set, and must not be modified.
	Backends []Member `json:"backends,omitempty"`
}

func (d Decision) String() string {
	if d.Verdict != service.Balance.String() {
		return d.Verdict
	}
	return plural.Of(len(d.Backends), "backend")
}

// Tables holds the contents of the datapath's tables.
type Tables struct {
	Services []Service `json:"services"`
	Backends []Backend `json:"backends"`
	// Draining are backends of no Service that have remaining connections or are down; set only with
	// Scope.Owners.
	Draining []Draining `json:"draining,omitempty"`
	// Networks are the ServiceCIDRs.
	Networks []string `json:"networks"`
	// PodNetworks are the pod networks, whose clients do not count as outside the cluster.
	PodNetworks []string `json:"podNetworks"`
	// Balancers are networks from which encapsulated packets for backends of this node are accepted.
	Balancers []string `json:"balancers,omitempty"`
	// OutsideServed means that the edge serves clients outside the cluster.
	OutsideServed bool `json:"outsideServed"`
}

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
func ReadTables(t *bpf.Tables) (*Tables, error) {
	return ReadScope(context.Background(), t, Scope{})
}

// ReadScope reads the selected part, until ctx ends. Its time grows with the number of frontends and the total
// size of all sets, however many Services share a backend.
func ReadScope(ctx context.Context, t *bpf.Tables, scope Scope) (*Tables, error) {
	r := reader{ctx: ctx, scope: scope, tables: t, backends: map[uint32]*Backend{}, ranges: map[uint32][]string{}, sets: map[setKey][]Member{},
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
	all := &Tables{Networks: []string{}, PodNetworks: []string{}}
	if all.Services, err = r.services(index); err != nil {
		return nil, err
	}
	for key, network := range networks {
		switch network {
		case bpf.NetworkService:
			all.Networks = append(all.Networks, key.Prefix().String())
		case bpf.NetworkPod:
			all.PodNetworks = append(all.PodNetworks, key.Prefix().String())
		}
	}
	if all.Balancers, err = balancers(t); err != nil {
		return nil, err
	}
	slices.Sort(all.Networks)
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
	backends map[uint32]*Backend
	sets     map[setKey][]Member // cache: most sets are used by several frontends
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

func (r *reader) services(index map[bpf.FrontendKey]uint32) (all []Service, err error) {
	all = []Service{}
	for i, row := range r.rows(index) {
		if i%checkEvery == 0 && r.ctx.Err() != nil {
			return nil, r.ctx.Err()
		}
		last := len(all) - 1
		if last < 0 || all[last].Ref() != row.port.Owner {
			owner := row.port.Owner
			all = append(all, Service{Kind: owner.Kind, Namespace: owner.Namespace, Name: owner.Name})
			last++
		}
		s := &all[last]
		s.Frontends = append(s.Frontends, r.frontend(row.key, &row.content, row.port))
		s.noteAlgorithm(&row.content)
	}
	for i := range all {
		slices.SortFunc(all[i].Frontends, compareFrontends)
	}
	return all, nil
}

// noteAlgorithm sets the algorithm from a row.
func (s *Service) noteAlgorithm(row *codec.Frontend) {
	for class := range service.SourceClasses {
		switch slots := row.Slots(service.SourceClass(class)); {
		case slots.Count == 0:
		case row.Maglev():
			s.Algorithm, s.TableSize = service.Maglev, slots.Count
		default:
			s.Algorithm = service.Random
		}
	}
}

// compareFrontends orders by kind first: the ClusterIP before addresses derived from it.
func compareFrontends(a, b Frontend) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind),
		slices.Compare(a.Key.Address.Bytes[:], b.Key.Address.Bytes[:]),
		cmp.Compare(bpf.NetworkOrder(a.Key.Port), bpf.NetworkOrder(b.Key.Port)),
		cmp.Compare(a.Protocol, b.Protocol))
}

func (r *reader) frontend(key bpf.FrontendKey, row *codec.Frontend, port service.Port) Frontend {
	f := Frontend{
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
		OneAddress:      row.OneAddress(),
		OwnAddress:      row.OwnAddress(),
	}
	if key.Port != 0 {
		f.Address = netip.AddrPortFrom(key.Address.Addr(), bpf.NetworkOrder(key.Port)).String()
	}
	owner := port.Owner.Namespace + "/" + port.Owner.Name
	lists := row.Lists()
	for i, d := range []*Decision{&f.Pod, &f.Node, &f.Outside} {
		class := service.SourceClass(i)
		*d = Decision{Verdict: row.Verdict(class).String(), Masquerade: row.Masquerades(class),
			Backends: r.set(row.Slots(class), lists.Members[class], owner)}
	}
	f.Retained = r.set(lists.Retained, lists.Retained, owner)
	if row.Untracked() && row.HasHistory() && (!r.scope.Outline || r.scope.Owners) {
		f.Stable = r.stableMembers(lists)
	}
	return f
}

// set returns the backends of a set: its slots and its list of members.
func (r *reader) set(slots, members codec.Range, owner string) []Member {
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

// Find returns the object named namespace/name, or name if it is unique.
func (t *Tables) Find(name string) (*Service, error) {
	var found []*Service
	for i := range t.Services {
		s := &t.Services[i]
		if s.Namespace+"/"+s.Name == name || (!strings.Contains(name, "/") && s.Name == name) {
			found = append(found, s)
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("no Service %s is in the tables: `beeline service list` lists them", name)
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("%d objects are named %s: give namespace/name", len(found), name)
}
