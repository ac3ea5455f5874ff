// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"strings"

	"beeline.io/beeline/internal/bpf"
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
	// Algorithm is how backends are chosen; empty without backends. MaglevTableSize is the number of slots
	// of each Maglev table.
	Algorithm       service.Algorithm `json:"algorithm,omitempty"`
	MaglevTableSize uint32            `json:"maglevTableSize,omitempty"`
	// EdgeCounters are the edge's counters by port; nil without an edge.
	EdgeCounters []PortCounters `json:"edgeCounters,omitempty"`
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
	DSR         service.DSR `json:"dsr,omitempty"`
	FromPods    Decision    `json:"fromPods"`
	FromNode    Decision    `json:"fromNode"`
	FromOutside Decision    `json:"fromOutside"`
	// RetainedBackends are serving backends that are not in every set above: they keep their UDP flows.
	RetainedBackends []Member `json:"retainedBackends,omitempty"`
	// StableBackends are backends in no set above to which packets of clients without a conntrack entry may go
	// (DSR with Maglev): those of flows that began before the sets changed.
	StableBackends []Member `json:"stableBackends,omitempty"`

	Key           bpf.FrontendKey `json:"-"`
	LoopbackExact bool            `json:"-"` // FlagLoopbackExact
	OwnAddress    bool            `json:"-"` // FlagOwnAddress
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
	Draining     []Draining `json:"draining,omitempty"`
	ServiceCIDRs []string   `json:"serviceCIDRs"`
	// PodNetworks are the pod networks, whose clients do not count as outside the cluster.
	PodNetworks []string `json:"podNetworks"`
	// BalancerNetworks are networks from which encapsulated packets for backends of this node are accepted.
	BalancerNetworks []string `json:"balancerNetworks,omitempty"`
	// OutsideServed means that the edge serves clients outside the cluster.
	OutsideServed bool `json:"outsideServed"`
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
