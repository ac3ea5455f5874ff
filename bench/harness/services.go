// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"beeline.io/beeline/test/node"
)

// ServiceFolder is a folder of many Services, a file for each, with endpoints that do not exist.
type ServiceFolder struct {
	Folder    string
	Services  int
	Endpoints int // of each Service and family
	Families  []string
	Protocol  corev1.Protocol
}

const manyPort = 80

// The addresses of the endpoints are in ranges that nothing else in the lab uses.
var EndpointRange = map[string]netip.Prefix{
	"IPv4": netip.MustParsePrefix("10.32.0.0/12"),
	"IPv6": netip.MustParsePrefix("fd00:32::/64"),
}

// The first address of the Services in each family; the lab's own are below.
var FirstService = map[string]netip.Addr{
	"IPv4": netip.MustParseAddr("10.96.8.0"),
	"IPv6": netip.MustParseAddr("fd00:96::800"),
}

// Plus returns the n-th address after one.
func Plus(a netip.Addr, n int) netip.Addr {
	if a.Is4() {
		b := a.As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
		return netip.AddrFrom4(b)
	}
	b := a.As16()
	binary.BigEndian.PutUint64(b[8:], binary.BigEndian.Uint64(b[8:])+uint64(n))
	return netip.AddrFrom16(b)
}

// Address is a Service's address.
func (m *ServiceFolder) Address(family string, service int) netip.AddrPort {
	return netip.AddrPortFrom(Plus(FirstService[family], service), manyPort)
}

// Endpoint is an endpoint of a Service. Those with a number from m.endpoints on are not used yet.
func (m *ServiceFolder) Endpoint(family string, service, number int) netip.Addr {
	return Plus(EndpointRange[family].Addr(), 1+service*(m.Endpoints+1)+number)
}

func (m *ServiceFolder) Write() error {
	for service := range m.Services {
		if err := m.WriteOne(service, 0); err != nil {
			return err
		}
	}
	return nil
}

// WriteOne writes a Service; its first endpoint has this number.
func (m *ServiceFolder) WriteOne(service, first int) error {
	return node.WriteFile(m.Folder, fmt.Sprintf("many-%d.yaml", service), []byte(m.Text(service, first)))
}

// Text is the Service and its EndpointSlices.
func (m *ServiceFolder) Text(service, first int) string {
	var text strings.Builder
	name := fmt.Sprintf("many-%d", service)
	fmt.Fprintf(&text, "apiVersion: v1\nkind: Service\nmetadata:\n  name: %s\nspec:\n  clusterIP: %s\n  clusterIPs:\n",
		name, quoted(m.Address(m.Families[0], service).Addr()))
	for _, family := range m.Families {
		fmt.Fprintf(&text, "    - %s\n", quoted(m.Address(family, service).Addr()))
	}
	fmt.Fprintf(&text, "  ipFamilies: [%s]\n  ipFamilyPolicy: PreferDualStack\n  ports:\n    - name: main\n      protocol: %s\n      port: %d\n",
		strings.Join(m.Families, ", "), m.Protocol, manyPort)
	for _, family := range m.Families {
		fmt.Fprintf(&text, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: %s-%s\n  labels:\n"+
			"    kubernetes.io/service-name: %s\naddressType: %s\nports:\n  - name: main\n    protocol: %s\n    port: 8080\nendpoints:\n",
			name, strings.ToLower(family), name, family, m.Protocol)
		for number := range m.Endpoints {
			if number == 0 {
				number = first
			}
			fmt.Fprintf(&text, "  - addresses: [%s]\n    nodeName: node-%c\n", quoted(m.Endpoint(family, service, number)), 'a'+number%2)
		}
	}
	return text.String()
}

// quoted keeps YAML from parsing an address as something else.
func quoted(a netip.Addr) string { return `"` + a.String() + `"` }

// The greater number of Services, and the number of endpoints of each.
const (
	MostServices        = 5000
	EndpointsPerService = 10
)

// A ServiceObjects is a Service of IPv4 and its endpoint.
type ServiceObjects struct {
	Name    string
	Service *corev1.Service
	Slice   *discoveryv1.EndpointSlice
}

// NewServiceObjects makes a Service with one endpoint.
func NewServiceObjects(name string, protocol corev1.Protocol, clusterIP, endpoint netip.Addr) ServiceObjects {
	s, slices := node.Service(name, 1), node.Slices(name)
	node.SetPorts(s, slices, node.Port{Name: "main", Protocol: protocol, Port: ServicePort, Target: ServerPort})
	s.Spec.ClusterIP, s.Spec.ClusterIPs = clusterIP.String(), []string{clusterIP.String()}
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	ready, host := true, "node-c"
	slices[0].Endpoints = []discoveryv1.Endpoint{{
		Addresses: []string{endpoint.String()}, NodeName: &host, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
	}}
	return ServiceObjects{name, s, slices[0]}
}

// Fillers are so many Services without clients.
func Fillers(count int, protocol corev1.Protocol) (all []ServiceObjects) {
	for i := range count {
		all = append(all, NewServiceObjects(fmt.Sprintf("many-%d", i), protocol, Plus(FirstService["IPv4"], i), Plus(EndpointRange["IPv4"].Addr(), 1+i)))
	}
	return all
}
