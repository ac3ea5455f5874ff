// SPDX-License-Identifier: Apache-2.0

// Package observe shows people what the datapath is doing: what the tables
// say, and what the agent thinks of it. Everything here has a JSON form, which
// is what the agent's socket serves and `-o json` prints.
package observe

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
	"beeline.io/beeline/internal/sync"
)

// Service is an object with all addresses that lead to it.
type Service struct {
	// Kind is Service, or Pod for hostPorts.
	Kind      service.Kind `json:"kind"`
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	// State, Reasons, Problems and Refusals are the agent's; empty if read from the tables
	// alone.
	State     sync.State `json:"state,omitempty"`
	Reasons   []string   `json:"reasons,omitempty"`
	Problems  []string   `json:"problems,omitempty"`
	Refusals  []string   `json:"refusals,omitempty"`
	Frontends []Frontend `json:"frontends"`
	// Algorithm is how backends are chosen; empty where there are none. TableSize is
	// the number of slots of its Maglev tables.
	Algorithm service.Algorithm `json:"algorithm,omitempty"`
	TableSize uint32            `json:"tableSize,omitempty"`
	// Counters are those of the edge by port; nil where there is none.
	Counters []PortCounters `json:"counters,omitempty"`
	// Leaving are backends that get no new connection, and have some yet or are down: only of a Service that is
	// read alone.
	Leaving []Leaving `json:"leaving,omitempty"`
	// Health is the agent's; nil where no health check is asked for.
	Health *Health `json:"health,omitempty"`
}

// Ref identifies the object.
func (s *Service) Ref() service.Ref {
	return service.Ref{Kind: s.Kind, Namespace: s.Namespace, Name: s.Name}
}

// Frontend is one address that clients ask for, as the tables have it.
type Frontend struct {
	// Address is address:port, or the address alone for all other ports.
	Address  string               `json:"address"`
	Protocol service.Protocol     `json:"protocol"`
	Kind     service.FrontendKind `json:"kind"`
	Port     string               `json:"port,omitempty"` // name of the service port
	// ServiceID is the number of the service port in the tables.
	ServiceID       uint32   `json:"serviceID"`
	AffinitySeconds uint32   `json:"affinitySeconds,omitempty"`
	SourceRanges    []string `json:"sourceRanges,omitempty"`
	Restricted      bool     `json:"restricted,omitempty"` // only SourceRanges are admitted
	// DSR is how packets of clients outside get to backends on other nodes; empty: in this
	// node's name.
	DSR     service.DSR `json:"dsr,omitempty"`
	Pod     Decision    `json:"pod"`
	Node    Decision    `json:"node"`
	Outside Decision    `json:"outside"`
	// Kept are backends that serve, though not in every set above: they keep the
	// UDP flows that they have.
	Kept []Member `json:"kept,omitempty"`

	key        datapath.FrontendKey
	oneAddress bool // FlagOneAddress
	ownAddress bool // FlagOwnAddress
}

// Decision is what one class of clients meets.
type Decision struct {
	Verdict    string `json:"verdict"`
	Masquerade bool   `json:"masquerade,omitempty"`
	// Backends is shared by decisions that name the same set: nobody alters it.
	Backends []Member `json:"backends,omitempty"`
}

func (d Decision) String() string {
	if d.Verdict != service.Balance.String() {
		return d.Verdict
	}
	if len(d.Backends) == 1 {
		return "1 backend"
	}
	return fmt.Sprintf("%d backends", len(d.Backends))
}

// Tables is what the datapath's tables say.
type Tables struct {
	Services []Service `json:"services"`
	Backends []Backend `json:"backends"`
	// Leaving are backends that no Service has, and that have connections yet or are down; only with
	// Scope.Owners.
	Leaving []Leaving `json:"leaving,omitempty"`
	// Networks are the ServiceCIDRs.
	Networks []string `json:"networks"`
	// PodNetworks are where pods are, which are no clients from outside.
	PodNetworks []string `json:"podNetworks"`
	// Balancers are networks whose encapsulated packets are for backends of this node.
	Balancers []string `json:"balancers,omitempty"`
	// OutsideServed: there are programs for clients from outside.
	OutsideServed bool `json:"outsideServed"`
}

// Scope is how much of the tables somebody asks for: all of them where it is empty.
type Scope struct {
	// Service is namespace/name, or name in any namespace, of the only object to read.
	Service string
	// Outline: the frontends do without their backends, and the backends, unless Owners, without their
	// Services.
	Outline, Owners bool
}

// Wants says whether an object is one of those to read.
func (s Scope) Wants(ref service.Ref) bool {
	return s.Service == "" || s.Service == ref.Namespace+"/"+ref.Name || s.Service == ref.Name
}

// ReadTables reads them all. A change that goes on meanwhile may be seen by
// half.
func ReadTables(t *datapath.Tables) (*Tables, error) {
	return ReadScope(context.Background(), t, Scope{})
}

// ReadScope reads what is asked for, until ctx ends. The time that it takes grows with the number of frontends
// and the sum of the sizes of all sets, however many Services share a backend.
func ReadScope(ctx context.Context, t *datapath.Tables, scope Scope) (*Tables, error) {
	r := reader{ctx: ctx, scope: scope, tables: t, backends: map[uint32]*Backend{}, ranges: map[uint32][]string{}, sets: map[setKey][]Member{}}
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
		case datapath.NetworkService:
			all.Networks = append(all.Networks, key.Prefix().String())
		case datapath.NetworkPod:
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

func balancers(t *datapath.Tables) (all []string, err error) {
	if t.Balancers == nil {
		return nil, nil
	}
	networks, err := t.Balancers.All()
	for key, balancer := range networks {
		if balancer == datapath.IsBalancer {
			all = append(all, key.Prefix().String())
		}
	}
	slices.Sort(all)
	return all, err
}

type reader struct {
	ctx      context.Context
	scope    Scope
	tables   *datapath.Tables
	names    map[uint32]datapath.ServiceName
	ranges   map[uint32][]string
	backends map[uint32]*Backend
	sets     map[setKey][]Member // read already: most have several frontends
}

type setKey struct {
	decision datapath.Decision
	maglev   bool
	owner    string
}

// row is an entry of the index, and whose it is.
type row struct {
	key     datapath.FrontendKey
	content datapath.Frontend
	port    service.Port
}

// rows are the frontends to read, those of one object together.
func (r *reader) rows(index map[datapath.FrontendKey]uint32) []row {
	all := make([]row, 0, len(index))
	ports := map[uint32]service.Port{}
	for key, number := range index {
		if number >= r.tables.FrontendRows.Len() {
			continue
		}
		content := r.tables.FrontendRows.Load(number)
		port, known := ports[content.Service]
		if !known {
			port = sync.PortOf(r.names[content.Service])
			ports[content.Service] = port
		}
		if r.scope.Wants(port.Owner) {
			all = append(all, row{key, content, port})
		}
	}
	slices.SortFunc(all, func(a, b row) int { return a.port.Owner.Compare(b.port.Owner) })
	return all
}

// untilLooked is how many frontends are read before somebody looks whether they are still asked for.
const untilLooked = 64

func (r *reader) services(index map[datapath.FrontendKey]uint32) (all []Service, err error) {
	all = []Service{}
	for i, row := range r.rows(index) {
		if i%untilLooked == 0 && r.ctx.Err() != nil {
			return nil, r.ctx.Err()
		}
		last := len(all) - 1
		if last < 0 || all[last].Ref() != row.port.Owner {
			owner := row.port.Owner
			all = append(all, Service{Kind: owner.Kind, Namespace: owner.Namespace, Name: owner.Name})
			last++
		}
		s := &all[last]
		s.Frontends = append(s.Frontends, r.frontend(row.key, row.content, row.port))
		s.noteAlgorithm(row.content)
	}
	for i := range all {
		slices.SortFunc(all[i].Frontends, compareFrontends)
	}
	return all, nil
}

// noteAlgorithm takes over what a row says of it.
func (s *Service) noteAlgorithm(row datapath.Frontend) {
	for _, d := range row.Decisions {
		switch {
		case d.Count == 0:
		case row.Flags&uint16(datapath.FlagMaglev) != 0:
			s.Algorithm, s.TableSize = service.Maglev, d.Count
		default:
			s.Algorithm = service.Random
		}
	}
}

// compareFrontends orders by kind first: the ClusterIP before what is made of it.
func compareFrontends(a, b Frontend) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind),
		slices.Compare(a.key.Address.Bytes[:], b.key.Address.Bytes[:]),
		cmp.Compare(datapath.NetworkOrder(a.key.Port), datapath.NetworkOrder(b.key.Port)),
		cmp.Compare(a.Protocol, b.Protocol))
}

func (r *reader) frontend(key datapath.FrontendKey, row datapath.Frontend, port service.Port) Frontend {
	f := Frontend{
		Address:         key.Address.Addr().String(),
		Protocol:        service.Protocol(key.Protocol),
		Kind:            service.FrontendKind(row.Kind),
		Port:            port.Name,
		ServiceID:       row.Service,
		AffinitySeconds: row.AffinitySeconds,
		Restricted:      row.SourceSet != 0,
		DSR:             sync.DSROf(datapath.DSR(row.Dsr)),
		SourceRanges:    slices.Sorted(slices.Values(r.ranges[row.SourceSet])),
		key:             key,
		oneAddress:      row.Flags&uint16(datapath.FlagOneAddress) != 0,
		ownAddress:      row.Flags&uint16(datapath.FlagOwnAddress) != 0,
	}
	if key.Port != 0 {
		f.Address = netip.AddrPortFrom(key.Address.Addr(), datapath.NetworkOrder(key.Port)).String()
	}
	owner := port.Owner.Namespace + "/" + port.Owner.Name
	for class, d := range []*Decision{&f.Pod, &f.Node, &f.Outside} {
		*d = r.decision(row.Decisions[class], row.Flags&uint16(datapath.FlagMaglev) != 0, owner)
		d.Masquerade = row.Flags&(uint16(datapath.FlagMasquerade)<<class) != 0
	}
	if first := row.KeptFirst; first > 0 && first <= r.tables.Slots.Len() {
		f.Kept = r.decision(datapath.Decision{First: first, Count: r.tables.Slots.Load(first - 1)}, false, owner).Backends
	}
	return f
}

func (r *reader) decision(d datapath.Decision, maglev bool, owner string) Decision {
	if d.Count == 0 {
		return Decision{Verdict: service.Verdict(d.First).String()}
	}
	if r.scope.Outline && !r.scope.Owners {
		owner = ""
	}
	key := setKey{d, maglev, owner}
	if _, known := r.sets[key]; !known {
		if r.scope.Outline {
			r.noteMembers(d, maglev, owner)
			r.sets[key] = nil
		} else {
			r.sets[key] = r.members(d, maglev, owner)
		}
	}
	return Decision{Verdict: service.Balance.String(), Backends: r.sets[key]}
}

// Find returns the object called namespace/name, or name in any namespace if
// only one has it.
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
		return nil, fmt.Errorf("no Service %s is in the tables: `beeline service list` names those that are", name)
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("%d objects are called %s: give namespace/name", len(found), name)
}
