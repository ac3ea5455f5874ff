// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"maps"
	"slices"
	"strings"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/node/podcgroup"
	"beeline.io/beeline/internal/report/condition"
)

// A Pod is the state of a pod that has a proxy.
type Pod struct {
	api.MeshPod

	key        podcgroup.Key // by which it is followed
	sidecar    Sidecar       // of which policy is made; zero for one of --mesh-cgroups
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
	p.Proxy = api.ProxyIdentity{UID: mapped(p.policy.Proxy.UID, p.facts.users), GID: mapped(p.policy.Proxy.GID, p.facts.groups)}
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
func (s *Shortcut) Status() *api.MeshStatus {
	status := &api.MeshStatus{OutboundPort: s.config.options.OutboundPort, InboundPort: s.config.options.InboundPort}
	s.mu.Lock()
	defer s.mu.Unlock()
	status.Pods = make([]api.MeshPod, len(s.pods))
	for i := range s.pods {
		status.Pods[i] = s.pods[i].MeshPod
	}
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
				s.config.options.InboundPort, p.Label()).At(p.Label()))
		case p.NetNSCookie != 0 && p.ProxyListeners == 0:
			all = append(all, condition.MeshProxyMissing.New("the proxy of %s does not listen at port %d", p.Label(), s.config.options.InboundPort).At(p.Label()))
		case p.NetNSCookie != 0 && p.facts.known && !p.facts.listens && p.takesOutbound():
			all = append(all, condition.MeshProxyMissing.New("the proxy of %s does not listen at port %d of loopback, to which connections of its applications go", p.Label(), s.config.options.OutboundPort).At(p.Label()))
		}
		if p.facts.devices.unclear != "" {
			all = append(all, condition.MeshRoutesUnclear.New("which connections of %s leave by %s is not known for all: %s", p.Label(), strings.Join(p.interfaces.excluded, ", "), p.facts.devices.unclear).At(p.Label()))
		}
		if p.notRerouted {
			all = append(all, condition.MeshAnnotationUnsupported.New("what virtual machines behind %s send does not go to the proxy of %s: this kernel has no tcx (Linux 6.6)", strings.Join(p.interfaces.virtual, ", "), p.Label()).At(p.Label()))
		}
		if p.facts.stranger != "" {
			all = append(all, condition.MeshProxyOther.New("%s listens at port %d of %s, and its proxy has %s", p.facts.stranger, s.config.options.OutboundPort, p.Label(), &p.Proxy).At(p.Label()))
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
		s.log.Error("mesh: read which proxies' connections would have come back", "error", err)
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
