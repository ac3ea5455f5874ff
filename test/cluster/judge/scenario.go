// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"slices"
	"strings"
)

// Scenario is a Service and its endpoints, in the words of the rules. Its number determines names, addresses
// and node ports, so that many can exist side by side.
type Scenario struct {
	Number   int    `json:"number"`
	Type     string `json:"type"`     // ClusterIP, NodePort, LoadBalancer
	Families string `json:"families"` // v4, v6, v4v6, v6v4
	Ports    string `json:"ports"`    // tcp, udp, tcp+udp, tcp+sctp, two, unnamed
	Internal string `json:"internalTrafficPolicy"`
	External string `json:"externalTrafficPolicy,omitempty"` // of all types except ClusterIP
	// Affinity is switched on after the set of backends is known, and then the same probes run again.
	Affinity    bool   `json:"sessionAffinity,omitempty"`
	ExternalIPs bool   `json:"externalIPs,omitempty"`
	Ingress     string `json:"ingress,omitempty"` // IP, VIP, Proxy, hostname; empty: none
	// Ranges are loadBalancerSourceRanges in words: pods, node, nobody, all4, all6, joined by "+". All
	// except the last two have both families.
	Ranges      string     `json:"sourceRanges,omitempty"`
	NoNodePorts bool       `json:"noNodePorts,omitempty"` // allocateLoadBalancerNodePorts: false
	Label       string     `json:"label,omitempty"`       // proxy, headless: see objects.go
	Proxy       string     `json:"proxy,omitempty"`       // how both proxies are configured: see proxyConfigs
	Addresses   string     `json:"addresses,omitempty"`   // what is special about external and ingress IPs: see addresses.go
	Beside      string     `json:"beside,omitempty"`      // another Service that interacts with this one: see beside.go
	Selector    string     `json:"selector,omitempty"`    // of pods, for slices by the controller: "node=node-b"
	Slices      string     `json:"slices"`                // see slices.go
	Hints       string     `json:"hints,omitempty"`       // how the endpoints' hints were drawn
	Endpoints   []Endpoint `json:"endpoints,omitempty"`
}

// Endpoint is one host of the lab as an endpoint: "a1" is the pod's own address, "a1+" its second one,
// "nobody1" an address that no host has.
type Endpoint struct {
	Host  string `json:"host"`
	State string `json:"state"` // see states
	// Again is its state in a second slice or, if Slices is "twice", once more in the same; empty: it
	// occurs once.
	Again string   `json:"again,omitempty"`
	Zones []string `json:"zones,omitempty"`
	Nodes []string `json:"nodes,omitempty"`
}

// states are the conditions of endpoints: ready, serving, terminating. nil is an unset condition.
var states = map[string][3]*bool{
	"ready":       {new(true), new(true), new(false)},
	"unset":       {nil, nil, nil},
	"not ready":   {new(false), new(false), new(false)},
	"draining":    {new(false), new(true), new(true)},
	"terminating": {new(false), new(false), new(true)},
	// As of a Service with publishNotReadyAddresses.
	"published": {new(true), new(true), new(true)},
	// As of a pod whose Service was created before it was ready.
	"serving": {new(false), new(true), new(false)},
	// As draining and published, with unset conditions.
	"draining unset":  {new(false), nil, new(true)},
	"published unset": {nil, nil, new(true)},
}

// Probe is a client's connection or datagram.
type Probe struct {
	From     string `json:"from"`     // a host of the lab
	To       string `json:"to"`       // see Scenario.address
	Family   string `json:"family"`   // v4, v6
	Protocol string `json:"protocol"` // tcp, udp
	Port     string `json:"port"`     // known, unknown
	// Socket is plain; bound to the client's address; second, bound to its second
	// address; device, bound to eth0; mapped, an AF_INET6 socket for an IPv4
	// address; unconnected, for UDP.
	Socket string `json:"socket"`
}

// Case is one probe of one Service.
type Case struct {
	ID       string   `json:"id"`
	Scenario Scenario `json:"scenario"`
	Probe    Probe    `json:"probe"`
	// Sticky repeats the probe after session affinity was switched on.
	Sticky bool `json:"sticky,omitempty"`
}

// Facts are a case in the words of patterns: those of docs/operate/differences.md, and those whose pairs the
// generator has to cover.
func (c *Case) Facts() map[string]string {
	s, p := &c.Scenario, &c.Probe
	return map[string]string{
		"from":      clientKind(p.From),
		"to":        p.To,
		"family":    p.Family,
		"protocol":  p.Protocol,
		"port":      s.portKind(p),
		"socket":    p.Socket,
		"type":      s.Type,
		"families":  s.Families,
		"ports":     s.Ports,
		"internal":  s.Internal,
		"external":  either(s.External, "none"),
		"affinity":  yesNo(c.Sticky),
		"ingress":   either(s.Ingress, "none"),
		"ranges":    either(s.Ranges, "none"),
		"label":     either(s.Label, "none"),
		"nodeports": s.nodePortsFor(p.Family),
		"edge":      s.edge(),
		"decided":   s.decided(p),
		"addresses": s.addressKind(),
		"beside":    either(s.Beside, "none"),
		"slices":    s.sliceKind(),
		"hints":     either(s.Hints, "none"),
		"endpoints": s.where(),
		"states":    s.stateMix(),
		"again":     yesNo(s.again()),
		"hairpin":   yesNo(s.has(p.From)),
	}
}

// addressKind is what is special about external and ingress IPs.
func (s *Scenario) addressKind() string {
	switch s.Addresses {
	case "":
		return "plain"
	case "v4", "v6":
		return "one-family"
	case "on node":
		return "on-node"
	case "node's":
		return "node"
	}
	return s.Addresses
}

// sliceKind describes the slices. Those that must not count are one kind, whatever the reason.
func (s *Scenario) sliceKind() string {
	switch s.Slices {
	case "fqdn", "no ports", "no number", "other service":
		return "stranger"
	}
	return strings.ReplaceAll(s.Slices, " ", "-")
}

// decided is where Beeline decides: at the socket, by the packet, or by a packet of a pod that it masquerades. The
// socket does not know the source if it is not bound (except for the node's connection to itself), nor the port to
// which a connected UDP socket will send. Nor can it masquerade.
func (s *Scenario) decided(p *Probe) string {
	kind := clientKind(p.From)
	bound := p.Socket == "bound" || p.Socket == "second"
	connected := p.Protocol == "udp" && p.Socket != "unconnected"
	switch {
	case kind == "pod" && s.masqueraded(p):
		return "masquerade"
	case kind != "pod" && kind != "node",
		strings.HasPrefix(p.To, "ingress") && s.restricted(p.Family) && !bound && !(kind == "node" && strings.HasSuffix(s.addressKind(), "node")),
		strings.HasSuffix(strings.ToLower(p.To), "clusterip") && connected && s.portKind(p) != "known" && s.served(p.Family):
		return "packet"
	}
	return "socket"
}

// masqueraded reports whether the packets of pods to a destination are masqueraded (--masquerade-all). The addresses
// that no Service has are not.
func (s *Scenario) masqueraded(p *Probe) bool {
	return proxyConfigs[s.Proxy].masqAll && s.served(p.Family) && p.To != "unused" && (s.External != "Local" || p.To == "clusterIP")
}

// served reports whether the proxies should serve the Service in a family.
func (s *Scenario) served(family string) bool {
	return s.Label != "proxy" && slices.Contains(s.families(), family)
}

// restricted reports whether loadBalancerSourceRanges admit only some of a family.
func (s *Scenario) restricted(family string) bool {
	some := false
	for word := range strings.SplitSeq(s.Ranges, "+") {
		if word == "all"+family[1:] {
			return false
		}
		some = some || word != "" && !strings.HasPrefix(word, "all")
	}
	return some
}

// portKind says whether the Service has the probe's port: known, foreign (it has the number, but for another
// protocol), unknown.
func (s *Scenario) portKind(p *Probe) string {
	if p.Port == "unknown" {
		return p.Port
	}
	if p.To == "otherClusterIP" && !slices.Contains(s.families(), p.Family) {
		return "foreign" // there is only the other Service, which has another port
	}
	for _, port := range s.ports() {
		if port.number == s.portKnown() && strings.EqualFold(string(port.protocol), p.Protocol) {
			return "known"
		}
	}
	return "foreign"
}

// clientKind is the class of a client.
func clientKind(host string) string {
	switch host {
	case judged:
		return "node"
	case "node-b":
		return "other-node"
	case "client":
		return "outside"
	case "b1", "b2", "b3":
		return "other-pod"
	}
	return "pod"
}

// where describes the nodes of the endpoints.
func (s *Scenario) where() string {
	var local, remote bool
	for _, e := range s.Endpoints {
		here := isLocal(e.Host) && s.Slices != "no node"
		local = local || here
		remote = remote || !here
	}
	switch {
	case local && remote:
		return "both"
	case local:
		return "local"
	case remote:
		return "remote"
	}
	return "none"
}

// isLocal reports whether a host is the judged node or a pod of it.
func isLocal(host string) bool { return host == judged || host[0] == 'a' }

// isNobody reports whether an endpoint's address belongs to no host.
func isNobody(host string) bool { return strings.HasPrefix(host, "nobody") }

// stateMix describes the states of the endpoints: all in one, or mixed.
func (s *Scenario) stateMix() string {
	mix := ""
	for _, e := range s.Endpoints {
		state := strings.TrimSuffix(e.State, " unset")
		if state == "unset" {
			state = "ready"
		}
		if mix != "" && mix != state {
			return "mixed"
		}
		mix = state
	}
	return either(mix, "none")
}

func (s *Scenario) again() bool {
	for _, e := range s.Endpoints {
		if e.Again != "" {
			return true
		}
	}
	return false
}

func (s *Scenario) has(host string) bool {
	for _, e := range s.Endpoints {
		if strings.TrimSuffix(e.Host, "+") == host {
			return true
		}
	}
	return false
}

// deaf reports whether there are endpoints that never answer.
func (s *Scenario) deaf() bool {
	return s.Slices == "two targets" || slices.ContainsFunc(s.Endpoints, func(e Endpoint) bool { return isNobody(e.Host) })
}

func either(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
