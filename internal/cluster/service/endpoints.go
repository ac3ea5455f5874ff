// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"slices"
)

// candidate is one address and port that slices contain for a service port.
type candidate struct {
	addr netip.AddrPort
	// endpoint is the entry that decides the conditions.
	endpoint *Endpoint
	// slice contains the entry.
	slice *EndpointSlice
	// weight is the largest weight of this address in any slice.
	weight uint8
	// down means that its health check fails (H1).
	down bool
	// node is Backend.Node.
	node netip.Addr
}

// ready reports whether the endpoint takes new connections (R10). An endpoint of weight zero, or with a failing
// health check, counts as neither ready nor serving.
func (c candidate) ready() bool { return c.weight > 0 && !c.down && c.endpoint.Ready }

// fallback reports whether the endpoint may take new connections if no endpoint is ready (KEP-1669).
func (c candidate) fallback() bool {
	return c.weight > 0 && !c.down && c.endpoint.Serving && c.endpoint.Terminating
}

// local reports whether an endpoint is on this node (R11).
func (c candidate) local(node *nodeFacts) bool {
	if c.endpoint.Node == "" {
		return node.localByAddress && node.isLocal(c.addr.Addr())
	}
	return c.endpoint.Node == node.name
}

// here reports whether an endpoint is on this node, or has no node name but an address of this node. Packets to
// it do not leave the node.
func (c candidate) here(node *nodeFacts) bool {
	return c.local(node) || c.endpoint.Node == "" && node.has(c.addr.Addr())
}

// portName matches service ports with endpoint ports (R5).
type portName struct {
	name     string
	protocol Protocol
}

func (p ServicePort) named() portName { return portName{p.Name, p.Protocol} }

// slicePort is a slice with endpoints of a service port, and their port number.
type slicePort struct {
	slice *EndpointSlice
	port  uint16
}

// portsOf returns, for each service port, the slices of a family that have endpoints for it, in the order of
// the slices.
func portsOf(endpointSlices []*EndpointSlice, family Family) map[portName][]slicePort {
	all := map[portName][]slicePort{}
	for _, s := range endpointSlices {
		if s.Family != family {
			continue
		}
		for _, p := range s.Ports {
			name := portName{p.Name, p.Protocol}
			all[name] = append(all[name], slicePort{s, p.Port})
		}
	}
	return all
}

// mergeEndpoints returns the endpoints of a service port from all its slices, each address and port once,
// sorted (R5, R6). The order of the slices must be fixed, because it decides between equivalent entries.
func mergeEndpoints(from []slicePort) []candidate {
	var all []candidate
	for _, p := range from {
		all = slices.Grow(all, len(p.slice.Endpoints))
		for i := range p.slice.Endpoints {
			e := &p.slice.Endpoints[i]
			all = append(all, candidate{addr: netip.AddrPortFrom(e.Addr, p.port), endpoint: e, slice: p.slice, weight: e.Weight})
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return a.addr.Compare(b.addr) })
	merged := all[:0]
	for _, c := range all {
		if last := len(merged) - 1; last >= 0 && merged[last].addr == c.addr {
			if c.over(&merged[last]) {
				merged[last].endpoint, merged[last].slice = c.endpoint, c.slice
			}
			merged[last].weight = max(merged[last].weight, c.weight)
			continue
		}
		merged = append(merged, c)
	}
	return merged
}

// over reports whether an entry replaces an earlier one with the same address: two pods can share an address if
// a network reuses that of a terminating pod, or if both are in the host network (R6). Within a slice the last
// entry that is not terminating wins, as in kube-proxy. Between slices kube-proxy's result is random; here the
// more available entry wins.
func (c *candidate) over(earlier *candidate) bool {
	a, b := c.endpoint, earlier.endpoint
	switch {
	case a.Terminating != b.Terminating:
		return !a.Terminating
	case c.slice == earlier.slice:
		return !a.Terminating
	case a.Ready != b.Ready:
		return a.Ready
	}
	return a.Serving && !b.Serving
}

// portSets are the endpoints to which a service port may send new connections.
type portSets struct {
	cluster, local []Backend
	// anywhere means that any node has a usable endpoint, reachable or not. It decides between Drop and
	// Reject (R16, R18).
	anywhere bool
}

// selectEndpoints selects the sets from all endpoints of a port (R10 to R13).
func selectEndpoints(all []candidate, node *nodeFacts) portSets {
	wanted := byTopology(all, node)
	s := portSets{
		cluster: backends(all, node, func(c candidate) bool { return c.ready() && wanted(c) }),
		local:   backends(all, node, func(c candidate) bool { return c.ready() && c.local(node) }),
	}
	if len(s.cluster) == 0 {
		s.cluster = backends(all, node, candidate.fallback)
	}
	if len(s.local) == 0 {
		s.local = backends(all, node, func(c candidate) bool { return c.fallback() && c.local(node) })
	}
	// Topology never hides the last ready endpoint, so an empty cluster set means that no node has an
	// endpoint.
	s.anywhere = len(s.cluster) > 0
	return s
}

func (s *portSets) of(scope Scope) []Backend {
	if scope == ScopeLocal {
		return s.local
	}
	return s.cluster
}

func backends(all []candidate, node *nodeFacts, admit func(candidate) bool) []Backend {
	n := 0
	for _, c := range all {
		if admit(c) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	bs := make([]Backend, 0, n)
	for _, c := range all {
		if admit(c) {
			b := Backend{Addr: c.addr, Local: c.here(node), Weight: c.weight}
			if !b.Local {
				b.Node = c.node
			}
			bs = append(bs, b)
		}
	}
	return bs
}

func (e *Endpoint) hints() Hints {
	if e.Hints == nil {
		return Hints{}
	}
	return *e.Hints
}

// byTopology returns a filter for the endpoints that hints assign to this node (R13, KEP-2433, KEP-3015). Hints
// of one kind apply only if every ready endpoint has some and one of them names this node or zone.
func byTopology(all []candidate, node *nodeFacts) func(candidate) bool {
	forNode := func(c candidate) bool { return slices.Contains(c.endpoint.hints().Nodes, node.name) }
	forZone := func(c candidate) bool { return slices.Contains(c.endpoint.hints().Zones, node.zone) }
	allNodes, allZones, thisNode, thisZone := true, true, false, false
	for _, c := range all {
		if c.ready() {
			allNodes = allNodes && len(c.endpoint.hints().Nodes) > 0
			allZones = allZones && len(c.endpoint.hints().Zones) > 0
			thisNode = thisNode || forNode(c)
			thisZone = thisZone || forZone(c)
		}
	}
	switch {
	case allNodes && thisNode:
		return forNode
	case allZones && thisZone:
		return forZone
	}
	return func(candidate) bool { return true }
}
