// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"beeline.io/beeline/test/node"
)

// many is a folder of many Services, a file for each, with endpoints that do not exist.
type many struct {
	folder    string
	services  int
	endpoints int // of each Service and family
	families  []string
	protocol  corev1.Protocol
}

const manyPort = 80

// The addresses of the endpoints are in ranges that nothing else in the lab uses.
var endpointRange = map[string]netip.Prefix{
	"IPv4": netip.MustParsePrefix("10.32.0.0/12"),
	"IPv6": netip.MustParsePrefix("fd00:32::/64"),
}

// The first address of the Services in each family; the lab's own are below.
var firstService = map[string]netip.Addr{
	"IPv4": netip.MustParseAddr("10.96.8.0"),
	"IPv6": netip.MustParseAddr("fd00:96::800"),
}

// plus returns the n-th address after one.
func plus(a netip.Addr, n int) netip.Addr {
	if a.Is4() {
		b := a.As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
		return netip.AddrFrom4(b)
	}
	b := a.As16()
	binary.BigEndian.PutUint64(b[8:], binary.BigEndian.Uint64(b[8:])+uint64(n))
	return netip.AddrFrom16(b)
}

// address is a Service's address.
func (m *many) address(family string, service int) netip.AddrPort {
	return netip.AddrPortFrom(plus(firstService[family], service), manyPort)
}

// endpoint is an endpoint of a Service. Those with a number from m.endpoints on are not used yet.
func (m *many) endpoint(family string, service, number int) netip.Addr {
	return plus(endpointRange[family].Addr(), 1+service*(m.endpoints+1)+number)
}

func (m *many) write() error {
	for service := range m.services {
		if err := m.writeOne(service, 0); err != nil {
			return err
		}
	}
	return nil
}

// writeOne writes a Service; its first endpoint has this number.
func (m *many) writeOne(service, first int) error {
	return node.WriteFile(m.folder, fmt.Sprintf("many-%d.yaml", service), []byte(m.text(service, first)))
}

// text is the Service and its EndpointSlices.
func (m *many) text(service, first int) string {
	var text strings.Builder
	name := fmt.Sprintf("many-%d", service)
	fmt.Fprintf(&text, "apiVersion: v1\nkind: Service\nmetadata:\n  name: %s\nspec:\n  clusterIP: %s\n  clusterIPs:\n",
		name, quoted(m.address(m.families[0], service).Addr()))
	for _, family := range m.families {
		fmt.Fprintf(&text, "    - %s\n", quoted(m.address(family, service).Addr()))
	}
	fmt.Fprintf(&text, "  ipFamilies: [%s]\n  ipFamilyPolicy: PreferDualStack\n  ports:\n    - name: main\n      protocol: %s\n      port: %d\n",
		strings.Join(m.families, ", "), m.protocol, manyPort)
	for _, family := range m.families {
		fmt.Fprintf(&text, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: %s-%s\n  labels:\n"+
			"    kubernetes.io/service-name: %s\naddressType: %s\nports:\n  - name: main\n    protocol: %s\n    port: 8080\nendpoints:\n",
			name, strings.ToLower(family), name, family, m.protocol)
		for number := range m.endpoints {
			if number == 0 {
				number = first
			}
			fmt.Fprintf(&text, "  - addresses: [%s]\n    nodeName: node-%c\n", quoted(m.endpoint(family, service, number)), 'a'+number%2)
		}
	}
	return text.String()
}

// quoted keeps YAML from parsing an address as something else.
func quoted(a netip.Addr) string { return `"` + a.String() + `"` }

const manyMost = 5000

const endpointsOf = 10

// A rateObject is a Service of IPv4 and its endpoint.
type rateObject struct {
	name    string
	service *corev1.Service
	slice   *discoveryv1.EndpointSlice
}

// newRateObject makes a Service with one endpoint.
func newRateObject(name string, protocol corev1.Protocol, clusterIP, endpoint netip.Addr) rateObject {
	s, slices := node.Service(name, 1), node.Slices(name)
	node.SetPorts(s, slices, node.Port{Name: "main", Protocol: protocol, Port: servicePort, Target: serverPort})
	s.Spec.ClusterIP, s.Spec.ClusterIPs = clusterIP.String(), []string{clusterIP.String()}
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	ready, host := true, "node-c"
	slices[0].Endpoints = []discoveryv1.Endpoint{{
		Addresses: []string{endpoint.String()}, NodeName: &host, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
	}}
	return rateObject{name, s, slices[0]}
}

// fillers are so many Services without clients.
func fillers(count int, protocol corev1.Protocol) (all []rateObject) {
	for i := range count {
		all = append(all, newRateObject(fmt.Sprintf("many-%d", i), protocol, plus(firstService["IPv4"], i), plus(endpointRange["IPv4"].Addr(), 1+i)))
	}
	return all
}
