// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Ports are TCP ports; All: every one.
type Ports struct {
	All  bool
	List []uint16
}

// Networks are IP networks; All: every one.
type Networks struct {
	All  bool
	List []netip.Prefix
}

// Rules are what of a pod's connections goes through the proxy in it.
type Rules struct {
	// ProxyUID and ProxyGID are the proxy's; nil: the default.
	ProxyUID, ProxyGID *uint32
	// OtherUIDs and OtherGIDs are those of applications, as far as they are set.
	OtherUIDs, OtherGIDs []uint32
	// ProxyContainer is the id of the proxy's container; empty: not known yet.
	ProxyContainer string
	Native, DNS    bool
	// UserNamespace: the ids are those of the pod's user namespace.
	UserNamespace bool
	// What goes to the proxy, and what of this does not. Excluded networks win over included ports, and
	// excluded ports over both.
	IncludeOutboundPorts                      []uint16
	IncludeOutbound                           Networks
	ExcludeOutbound                           []netip.Prefix
	ExcludeOutboundPorts, ExcludeInboundPorts []uint16
	IncludeInboundPorts                       Ports
	// ExcludeInterfaces are names of devices by which connections do not go to the proxy, in either direction; one
	// that ends in "+" is the beginning of names.
	ExcludeInterfaces []string
	// RerouteInterfaces are those behind which virtual machines are: what these send goes to the proxy.
	RerouteInterfaces []string
	// ProbePorts do not if the connection comes from the node.
	ProbePorts []uint16
}

// Rules evaluates the annotations of a pod. Invalid ones are as if they were not set.
func (p *Proxy) Rules() (r Rules, problems []string) {
	r = Rules{ProxyUID: p.UID, ProxyGID: p.GID, OtherUIDs: p.OtherUIDs, OtherGIDs: p.OtherGIDs,
		ProxyContainer: p.Container, Native: p.Native, DNS: p.DNS, UserNamespace: p.UserNamespace, ProbePorts: p.Probes,
		IncludeOutbound: Networks{All: true}, IncludeInboundPorts: Ports{All: true}}
	read := func(name string, set func(value string) error) {
		value, given := p.Traffic[name]
		if !given {
			return
		}
		if err := set(value); err != nil {
			if name != istioReroute {
				name = istioTraffic + name
			}
			problems = append(problems, fmt.Sprintf("annotation %s: %v: it is ignored", name, err))
		}
	}
	read("includeOutboundIPRanges", func(v string) (err error) { return assign(&r.IncludeOutbound, v, parseNetworks) })
	read("excludeOutboundIPRanges", func(v string) error { return assignList(&r.ExcludeOutbound, v, parseNetwork) })
	read("includeOutboundPorts", func(v string) error { return assignList(&r.IncludeOutboundPorts, v, parsePort) })
	read("excludeOutboundPorts", func(v string) error { return assignList(&r.ExcludeOutboundPorts, v, parsePort) })
	read("includeInboundPorts", func(v string) error { return assign(&r.IncludeInboundPorts, v, parsePorts) })
	read("excludeInboundPorts", func(v string) error { return assignList(&r.ExcludeInboundPorts, v, parsePort) })
	read("excludeInterfaces", func(v string) error { return assignList(&r.ExcludeInterfaces, v, ParseInterface) })
	read("kubevirtInterfaces", func(v string) error { return assignList(&r.RerouteInterfaces, v, ParseInterface) })
	read(istioReroute, func(v string) error { return assignList(&r.RerouteInterfaces, v, ParseInterface) }) // it wins
	if p.Istio {
		r.ExcludeInboundPorts = append(r.ExcludeInboundPorts, istioPorts...)
	}
	return r, problems
}

func assign[T any](to *T, text string, parse func(string) (T, error)) error {
	v, err := parse(text)
	if err == nil {
		*to = v
	}
	return err
}

func assignList[T any](to *[]T, text string, parse func(string) (T, error)) error {
	all, err := parseList(text, parse)
	if err == nil {
		*to = all
	}
	return err
}

// parseList parses a list with commas, which may be empty.
func parseList[T any](text string, parse func(string) (T, error)) (all []T, err error) {
	for _, word := range strings.Split(text, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		v, err := parse(word)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

func parsePort(text string) (uint16, error) {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return 0, fmt.Errorf("%.40q is not a port from 1 to 65535", text)
	}
	return uint16(port), nil
}

func parsePorts(text string) (p Ports, err error) {
	if strings.TrimSpace(text) == "*" {
		return Ports{All: true}, nil
	}
	p.List, err = parseList(text, parsePort)
	return p, err
}

// ParseInterface checks the name of a device, or the beginning of names and "+", as iptables takes them.
func ParseInterface(text string) (string, error) {
	if len(text) > 15 || text == "" || strings.ContainsAny(text, "/!") || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%.40q is not the name of a device", text)
	}
	return text, nil
}

func parseNetwork(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return p, fmt.Errorf("%.40q is not a network such as 10.0.0.0/8 or fd00::/8", text)
	}
	return p.Masked(), nil
}

func parseNetworks(text string) (n Networks, err error) {
	if strings.TrimSpace(text) == "*" {
		return Networks{All: true}, nil
	}
	n.List, err = parseList(text, parseNetwork)
	return n, err
}
