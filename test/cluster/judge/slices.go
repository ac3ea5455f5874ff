// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"beeline.io/beeline/test/cluster"
	"beeline.io/beeline/test/lab"
)

// EndpointSlices are the scenario's slices: at least one for each family of the Service. Values of Slices:
//
//	one              all endpoints in one slice
//	split            every other endpoint in a second one
//	both families    also of a family that the Service lacks
//	foreign port     its ports have other names than the Service's
//	twice            repeated endpoints are in the same slice
//	no node          endpoints have no node
//	second address   endpoints have a second address, another pod's (R5)
//	two targets      the second slice's TCP port is the HTTP server's
//	many             there are twenty endpoints
//	fqdn, no ports, no number, other service
//	                 there is another slice with strangers: of host names,
//	                 without ports, with ports without number, of another Service
//	controller       the controller writes the slices, there are none here
func (s *Scenario) EndpointSlices(l *lab.Lab) []*discoveryv1.EndpointSlice {
	var all []*discoveryv1.EndpointSlice
	families := s.families()
	if s.Slices == "both families" {
		families = []string{"v4", "v6"}
	}
	if s.Slices == "controller" {
		return nil
	}
	for _, family := range families {
		first, second := s.slice(family, 1), s.slice(family, 2)
		if s.Slices == "two targets" {
			for i, p := range second.Ports {
				if *p.Protocol == corev1.ProtocolTCP {
					second.Ports[i].Port = new(int32(lab.PortHTTP))
				}
			}
		}
		for i, e := range s.Endpoints {
			to, other := first, second
			if (s.Slices == "split" || s.Slices == "two targets") && i%2 == 1 {
				to, other = second, first
			}
			to.Endpoints = append(to.Endpoints, s.endpoint(l, e, family, e.State))
			if s.Slices == "twice" {
				other = to
			}
			if e.Again != "" {
				other.Endpoints = append(other.Endpoints, s.endpoint(l, e, family, e.Again))
			}
		}
		all = append(all, first)
		if len(second.Endpoints) > 0 {
			all = append(all, second)
		}
		if strange := s.strangeSlice(l, family); strange != nil {
			all = append(all, strange)
		}
	}
	return all
}

// strangers are ready endpoints of a slice that must not count.
var strangers = []Endpoint{{Host: "a3", State: "ready"}, {Host: "b3", State: "ready"}}

// strangeSlice is the slice that must not count, or nil.
func (s *Scenario) strangeSlice(l *lab.Lab, family string) *discoveryv1.EndpointSlice {
	object := s.slice(family, 3)
	for _, e := range strangers {
		object.Endpoints = append(object.Endpoints, s.endpoint(l, e, family, e.State))
	}
	switch s.Slices {
	case "fqdn":
		object.AddressType = discoveryv1.AddressTypeFQDN
		for i := range object.Endpoints {
			object.Endpoints[i].Addresses = []string{strangers[i].Host + ".lab.invalid"}
		}
	case "no ports":
		object.Ports = nil
	case "no number":
		for i := range object.Ports {
			object.Ports[i].Port = nil
		}
	case "other service":
		object.Labels[discoveryv1.LabelServiceName] = s.Name() + "-other"
	default:
		return nil
	}
	return object
}

func (s *Scenario) slice(family string, n int) *discoveryv1.EndpointSlice {
	object := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cluster.Namespace, Name: fmt.Sprintf("%s-%s-%d", s.Name(), family, n),
			Labels: map[string]string{discoveryv1.LabelServiceName: s.Name()},
		},
		AddressType: map[string]discoveryv1.AddressType{"v4": discoveryv1.AddressTypeIPv4, "v6": discoveryv1.AddressTypeIPv6}[family],
		Endpoints:   []discoveryv1.Endpoint{},
	}
	if s.Label == "headless" {
		object.Labels[corev1.IsHeadlessService] = ""
	}
	for _, p := range s.ports() {
		name := p.name
		if s.Slices == "foreign port" {
			name = "other" + name
		}
		object.Ports = append(object.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &p.protocol, Port: new(int32(lab.PortTCP))})
	}
	return object
}

// endpoint is an endpoint as an object.
func (s *Scenario) endpoint(l *lab.Lab, e Endpoint, family, state string) discoveryv1.Endpoint {
	conditions := states[state]
	machine := machineOf(l, e.Host)
	object := discoveryv1.Endpoint{
		Addresses:  []string{endpointAddress(l, e.Host, family).String()},
		NodeName:   &machine,
		Zone:       new(zoneOf(machine)),
		Conditions: discoveryv1.EndpointConditions{Ready: conditions[0], Serving: conditions[1], Terminating: conditions[2]},
	}
	switch s.Slices {
	case "no node":
		object.NodeName = nil
	case "second address":
		object.Addresses = append(object.Addresses, addressOf(l.Host(strangers[0].Host), family).String())
	}
	if len(e.Zones)+len(e.Nodes) > 0 {
		object.Hints = &discoveryv1.EndpointHints{}
	}
	for _, zone := range e.Zones {
		object.Hints.ForZones = append(object.Hints.ForZones, discoveryv1.ForZone{Name: zone})
	}
	for _, n := range e.Nodes {
		object.Hints.ForNodes = append(object.Hints.ForNodes, discoveryv1.ForNode{Name: n})
	}
	return object
}

// machineOf is the node of an endpoint; that of addresses without a host is the other one.
func machineOf(l *lab.Lab, name string) string {
	if isNobody(name) {
		return "node-b"
	}
	host := l.Host(strings.TrimSuffix(name, "+"))
	if host.Node != nil {
		return host.Node.Name
	}
	return host.Name
}

func endpointAddress(l *lab.Lab, name, family string) netip.Addr {
	if number, ok := strings.CutPrefix(name, "nobody"); ok {
		n, err := strconv.Atoi(number)
		if err != nil {
			panic("endpoint " + name + ": " + err.Error())
		}
		return nobodyIPs.at(n, family)
	}
	if host, ok := strings.CutSuffix(name, "+"); ok {
		return secondOf(l.Host(host), family)
	}
	return addressOf(l.Host(name), family)
}

// zoneOf is the zone that package node gives to a Node.
func zoneOf(machine string) string { return "zone-" + machine }
