// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"beeline.io/beeline/internal/node/podcgroup"
	"beeline.io/beeline/internal/report/condition"
)

// A Pod is the state of a pod that has a proxy.
type Pod struct {
	// Name is the pod's in Kubernetes. For one of Config.Cgroups it may be empty, and NoNameReason says why.
	Name         string `json:"name,omitempty"`
	NoNameReason string `json:"noNameReason,omitempty"`
	// UID is that of a pod that --mesh-pods selects; empty for one of Config.Cgroups.
	UID string `json:"uid,omitempty"`
	// Proxy is what tells its proxy from applications.
	Proxy Identity `json:"proxy"`
	// Native: its proxy is an init container that does not end.
	Native          bool   `json:"nativeSidecar,omitempty"`
	CgroupDirectory string `json:"cgroupDirectory,omitempty"`
	// CgroupID is the id of the cgroup; 0: there is none.
	CgroupID uint64 `json:"cgroupID,omitempty"`
	// NetNSCookie is the cookie of its network namespace; 0: the cgroup has had no process yet.
	NetNSCookie uint64 `json:"netnsCookie,omitempty"`
	// ProxyListeners is the number of the proxy's sockets for inbound connections.
	ProxyListeners int `json:"proxyListeners"`
	// Error is why connections do not go to the proxy; empty: they do.
	Error string `json:"error,omitempty"`

	key        podcgroup.Key // by which it is followed
	sidecar    Sidecar       // of which policy is made; zero for one of Config.Cgroups
	policy     *Policy
	interfaces interfaces
	container  string // the id of the proxy's; empty: unknown
	// mapped: the ids in the policy are those of the pod's user namespace.
	mapped   bool
	facts    facts
	attached bool
	// unfit is why its rules are not in the tables; empty: they are.
	unfit       string
	detached    bool     // attaching failed
	inbound     uint64   // the namespace with the program for inbound connections
	rerouted    []int    // indexes of devices with the program for virtual machines
	transparent []uint64 // listeners that answer virtual machines
	notRerouted bool     // the kernel cannot
}

// An Identity is what tells the proxy of a pod from applications: the proxy is a process that has one of these.
type Identity struct {
	// UID and GID are as the node has them, also if the pod has a user namespace; nil: they do not tell.
	UID *uint32 `json:"uid,omitempty"`
	GID *uint32 `json:"gid,omitempty"`
	// Cgroup is that of the proxy's container; empty: unknown.
	Cgroup string `json:"cgroup,omitempty"`
}

// Known reports whether anything tells the proxy.
func (i *Identity) Known() bool { return i.UID != nil || i.GID != nil || i.Cgroup != "" }

func (i *Identity) equal(other *Identity) bool {
	same := func(a, b *uint32) bool { return a == b || a != nil && b != nil && *a == *b }
	return same(i.UID, other.UID) && same(i.GID, other.GID) && i.Cgroup == other.Cgroup
}

func (i *Identity) String() string {
	var parts []string
	if i.UID != nil {
		parts = append(parts, fmt.Sprintf("user %d", *i.UID))
	}
	if i.GID != nil {
		parts = append(parts, fmt.Sprintf("group %d", *i.GID))
	}
	if i.Cgroup != "" {
		parts = append(parts, "its container")
	}
	return cmp.Or(strings.Join(parts, ", "), "unknown")
}

// A Left is a pod that is selected and left alone.
type Left struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Status is the state of the sidecar shortcut.
type Status struct {
	Pods         []Pod  `json:"pods"`
	LeftAlone    []Left `json:"leftAlone,omitempty"`
	OutboundPort uint16 `json:"outboundPort"`
	InboundPort  uint16 `json:"inboundPort"`
}

// Served reports whether all connections of the pod go to its proxy.
func (p *Pod) Served() bool { return p.Error == "" && p.NetNSCookie != 0 && p.Proxy.Known() }

// Label is what people call the pod.
func (p *Pod) Label() string { return cmp.Or(p.Name, p.CgroupDirectory) }

// reset returns the pod with a cgroup to which nothing is attached.
func (p Pod) reset(cgroup uint64, failed string) Pod {
	p.CgroupID, p.NetNSCookie, p.attached, p.inbound, p.Error, p.facts = cgroup, 0, false, 0, failed, facts{}
	p.rerouted, p.transparent = nil, nil
	p.identify()
	return p
}

// identify sets what tells the proxy, by what is known of the pod.
func (p *Pod) identify() {
	mapped := func(id *uint32, m idMap) *uint32 {
		if id == nil {
			return nil
		}
		outside, ok := m.outside(*id)
		if !ok {
			return nil
		}
		return &outside
	}
	p.Proxy = Identity{mapped(p.policy.Proxy.UID, p.facts.users), mapped(p.policy.Proxy.GID, p.facts.groups), ""}
	if p.CgroupID != 0 {
		p.Proxy.Cgroup = containerOf(p.CgroupDirectory, p.container)
	}
}

// Pods returns the state of all pods.
func (s *Shortcut) Pods() []Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.pods)
}

// Status returns the state of all pods, and which are left alone.
func (s *Shortcut) Status() *Status {
	status := &Status{Pods: s.Pods(), OutboundPort: s.config.OutboundPort, InboundPort: s.config.InboundPort}
	s.mu.Lock()
	defer s.mu.Unlock()
	status.LeftAlone = s.left
	return status
}

// Conditions returns what is wrong with pods. A cgroup that does not exist is not: the pod may not run.
func (s *Shortcut) Conditions() (all condition.List) {
	pods := s.Pods()
	for _, p := range pods {
		switch {
		case p.CgroupID != 0 && p.Error != "":
			all = append(all, condition.MeshPodFailed.New("%s", p.Error).At(p.Label()))
		case p.NetNSCookie != 0 && !p.Proxy.Known():
			all = append(all, condition.MeshProxyUnknown.New("nothing tells the proxy of %s from applications: they have the same user and group, or it is root, and the cgroup of its container is not known",
				p.Label()).At(p.Label()))
		case p.NetNSCookie != 0 && p.ProxyListeners == 0 && p.facts.listensInbound:
			all = append(all, condition.MeshProxyMissing.New("a socket listens at port %d of %s, and the kernel does not let connections from other hosts be given to it, as to those of MPTCP: have the proxy listen by TCP (in Go: GODEBUG=multipathtcp=0)",
				s.config.InboundPort, p.Label()).At(p.Label()))
		case p.NetNSCookie != 0 && p.ProxyListeners == 0:
			all = append(all, condition.MeshProxyMissing.New("the proxy of %s does not listen at port %d", p.Label(), s.config.InboundPort).At(p.Label()))
		case p.NetNSCookie != 0 && p.facts.known && !p.facts.listens && p.takesOutbound():
			all = append(all, condition.MeshProxyMissing.New("the proxy of %s does not listen at port %d of loopback, to which connections of its applications go", p.Label(), s.config.OutboundPort).At(p.Label()))
		}
		if p.facts.devices.unclear != "" {
			all = append(all, condition.MeshRoutesUnclear.New("which connections of %s leave by %s is not known for all: %s", p.Label(), strings.Join(p.interfaces.excluded, ", "), p.facts.devices.unclear).At(p.Label()))
		}
		if p.notRerouted {
			all = append(all, condition.MeshAnnotationUnsupported.New("what virtual machines behind %s send does not go to the proxy of %s: this kernel has no tcx (Linux 6.6)", strings.Join(p.interfaces.virtual, ", "), p.Label()).At(p.Label()))
		}
		if p.facts.stranger != "" {
			all = append(all, condition.MeshProxyOther.New("%s listens at port %d of %s, and its proxy has %s", p.facts.stranger, s.config.OutboundPort, p.Label(), &p.Proxy).At(p.Label()))
		}
	}
	all = append(all, s.loopConditions(pods)...)
	all = append(all, s.readerConditions(pods)...)
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(all, s.problem...)
}

// loopAge is how long connections that would have come back are a condition.
const loopAge = 2 * time.Minute

// loopConditions names the pods whose proxies' connections would have come back to them.
func (s *Shortcut) loopConditions(pods []Pod) (all condition.List) {
	loops, err := s.datapath.Loops(loopAge)
	if err != nil {
		s.config.Log.Error("mesh: read which proxies' connections would have come back", "error", err)
	}
	for _, p := range pods {
		if n := loops[p.NetNSCookie]; p.NetNSCookie != 0 && n > 0 {
			all = append(all, condition.MeshProxyLoops.New("connections of the proxy of %[2]s would have come back to it, and were refused (%[1]d): it is not known by %[3]s", n, p.Label(), &p.Proxy).At(p.Label()))
		}
	}
	return all
}

// takesOutbound reports whether connections of applications go to the proxy.
func (p *Pod) takesOutbound() bool {
	included := func(r Rule) bool { return r == Include }
	return p.policy.AllOutbound || slices.ContainsFunc(slices.Collect(maps.Values(p.policy.OutboundPorts)), included) ||
		slices.ContainsFunc(slices.Collect(maps.Values(p.policy.Networks)), included)
}
