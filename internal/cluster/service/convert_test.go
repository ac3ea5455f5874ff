// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var compareValues = cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{}), cmpopts.EquateEmpty()}

// convert reads a manifest and converts it.
func convert[In, Out any](t *testing.T, manifest string, f func(*In) (Out, error)) (Out, error) {
	t.Helper()
	in := new(In)
	if err := yaml.UnmarshalStrict([]byte(manifest), in); err != nil {
		t.Fatal(err)
	}
	before := must(json.Marshal(in))
	defer func() {
		if !bytes.Equal(before, must(json.Marshal(in))) {
			t.Error("the converter modified its input")
		}
	}()
	return f(in)
}

// checkErrors expects one error per line, each with the words of one entry.
func checkErrors(t *testing.T, err error, want ...string) {
	t.Helper()
	var got []string
	if err != nil {
		got = strings.Split(err.Error(), "\n")
	}
	if len(got) != len(want) {
		t.Fatalf("%d errors, want %d: %v", len(got), len(want), err)
	}
	for i, w := range want {
		for _, part := range strings.Split(w, " … ") {
			if !strings.Contains(got[i], part) {
				t.Errorf("error %d: %q lacks %q", i, got[i], part)
			}
		}
	}
}

func TestConvertService(t *testing.T) {
	got, err := convert(t, `
metadata:
  namespace: shop
  name: web
  creationTimestamp: "2026-01-02T03:04:05Z"
  labels: {service.kubernetes.io/service-proxy-name: other}
spec:
  type: LoadBalancer
  clusterIP: 10.0.0.1
  clusterIPs: [10.0.0.1, "fd00::1"]
  ipFamilies: [IPv4, IPv6]
  externalIPs: [203.0.113.5]
  externalTrafficPolicy: Local
  internalTrafficPolicy: Local
  healthCheckNodePort: 32000
  loadBalancerSourceRanges: [198.51.100.0/24]
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 90}}
  ports: [{name: http, port: 80, nodePort: 30080}, {name: dns, port: 53, protocol: UDP}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.1}]}}
`, ConvertService)
	checkErrors(t, err)
	want := &Service{
		Namespace: "shop", Name: "web", Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		ProxyName: "other", HasProxyName: true,
		Type: "LoadBalancer", ClusterIPs: []string{"10.0.0.1", "fd00::1"}, IPFamilies: []Family{IPv4, IPv6},
		ExternalIPs: addrs("203.0.113.5"), IngressIPs: addrs("203.0.113.1"), SourceRanges: prefixes("198.51.100.0/24"),
		Ports:    []ServicePort{{"http", TCP, 80, 30080}, {"dns", UDP, 53, 0}},
		Affinity: 90 * time.Second, ExternalLocal: true, InternalLocal: true, HealthCheckNodePort: 32000,
	}
	if diff := cmp.Diff(want, got, compareValues); diff != "" {
		t.Error(diff)
	}
}

func TestConvertServiceDefaults(t *testing.T) {
	got, err := convert(t, `{metadata: {namespace: shop, name: web}, spec: {clusterIP: 10.0.0.1, sessionAffinity: ClientIP, ports: [{port: 80}]}}`, ConvertService)
	checkErrors(t, err)
	want := &Service{
		Namespace: "shop", Name: "web", Type: "ClusterIP", ClusterIPs: []string{"10.0.0.1"},
		Ports: []ServicePort{{"", TCP, 80, 0}}, Affinity: 10800 * time.Second,
	}
	if diff := cmp.Diff(want, got, compareValues); diff != "" {
		t.Error(diff)
	}
}

func TestR8OldSpellingsOfAddresses(t *testing.T) {
	got, err := convert(t, `
spec:
  clusterIPs: ["010.000.000.001", " FD00:0000::0001 "]
  ipFamilies: [IPv4, IPv6]
  externalIPs: [" 203.0.113.005 ", "", "::ffff:203.0.113.6"]
  loadBalancerSourceRanges: [" 198.051.100.7/24 ", "2001:DB8::1/32", " ", "::ffff:192.0.2.0/120"]
status: {loadBalancer: {ingress: [{ip: 203.0.113.001}]}}
`, ConvertService)
	checkErrors(t, err)
	want := &Service{
		Type: "ClusterIP", ClusterIPs: []string{"10.0.0.1", "fd00::1"}, IPFamilies: []Family{IPv4, IPv6},
		ExternalIPs: addrs("203.0.113.5", "203.0.113.6"), IngressIPs: addrs("203.0.113.1"),
		SourceRanges: prefixes("198.51.100.0/24", "2001:db8::/32", "192.0.2.0/24"),
	}
	if diff := cmp.Diff(want, got, compareValues); diff != "" {
		t.Error(diff)
	}
	slice, err := convert(t, `{addressType: IPv4, endpoints: [{addresses: ["010.001.000.009", "ignored"]}]}`, ConvertEndpointSlice)
	checkErrors(t, err)
	if a := slice.Endpoints[0].Addr.String(); a != "10.1.0.9" {
		t.Errorf("endpoint at %s", a)
	}
}

func TestConvertServiceErrors(t *testing.T) {
	got, err := convert(t, `
metadata: {name: web}
spec:
  clusterIPs: [10.0.0.300]
  ipFamilies: [IPv5]
  externalIPs: [example.org, 203.0.113.5, 127.0.0.1, 0.0.0.0]
  loadBalancerSourceRanges: [10.0.0.0, 10.0.0.0/33, 198.51.100.0/24, "fe80::%eth0/64", "::ffff:10.0.0.0/90"]
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}
  ports: [{port: 0}, {port: 80, protocol: HTTP}, {port: 443, nodePort: 70000}]
status: {loadBalancer: {ingress: [{ip: "203.0.113.1/32"}, {ip: 224.0.0.1}, {ip: 203.0.113.1}]}}
`, ConvertService)
	checkErrors(t, err,
		`spec.clusterIPs[0] … "10.0.0.300" … expected an IPv4 or IPv6 address`,
		`spec.loadBalancerSourceRanges[0] … "10.0.0.0" … expected a CIDR`,
		`spec.loadBalancerSourceRanges[1] … "10.0.0.0/33"`,
		`spec.loadBalancerSourceRanges[3]`,
		`spec.loadBalancerSourceRanges[4]`,
		`spec.sessionAffinityConfig.clientIP.timeoutSeconds: 0: … 1 to 86400 seconds`,
		`spec.ipFamilies[0] … "IPv5" … IPv4 or IPv6`,
		`spec.externalIPs[0] … "example.org"`,
		`spec.externalIPs[2] … not a loopback`,
		`spec.externalIPs[3] … unicast`,
		`status.loadBalancer.ingress[0].ip`,
		`status.loadBalancer.ingress[1].ip … unicast`,
		`spec.ports[0].port: 0: … 1 to 65535`,
		`spec.ports[1].protocol … "HTTP" … TCP, UDP or SCTP`,
		`spec.ports[2].nodePort: 70000`,
	)
	want := &Service{
		Name: "web", Type: "ClusterIP", ClusterIPs: []string{""}, IPFamilies: []Family{0},
		ExternalIPs: addrs("203.0.113.5"), IngressIPs: addrs("203.0.113.1"), SourceRanges: prefixes("198.51.100.0/24"),
		Ports: []ServicePort{{"", TCP, 443, 0}}, Affinity: 3 * time.Hour,
	}
	if diff := cmp.Diff(want, got, compareValues); diff != "" {
		t.Error(diff)
	}
}

func TestExternalTrafficPolicyNeedsAnExternalService(t *testing.T) {
	for typ, want := range map[corev1.ServiceType]bool{"": false, "ClusterIP": false, "NodePort": true, "LoadBalancer": true, "ExternalName": false} {
		s := service("web", eTPLocal, func(s *corev1.Service) {
			s.Spec.Type = typ
			s.Spec.HealthCheckNodePort = 32000
		})
		if s.ExternalLocal != want || (s.HealthCheckNodePort != 0) != (typ == "LoadBalancer") {
			t.Errorf("type %q: local %t, health check port %d", typ, s.ExternalLocal, s.HealthCheckNodePort)
		}
	}
	if !service("web", eTPLocal, externalIPs(vip)).ExternalLocal {
		t.Error("a ClusterIP Service with externalIPs is external")
	}
}

func TestConvertEndpointSlice(t *testing.T) {
	got, err := convert(t, `
metadata:
  namespace: shop
  name: web-1
  labels: {kubernetes.io/service-name: web, service.kubernetes.io/headless: ""}
  annotations: {beeline.io/weight: "255"}
addressType: IPv6
ports: [{name: http, port: 8080, protocol: TCP}, {name: "", port: 53, protocol: UDP}, {name: all}, {name: zero, port: 0}]
endpoints:
- {addresses: ["fd01::1"], nodeName: here, conditions: {ready: false, serving: true, terminating: true}}
- {addresses: ["fd01::2"], hints: {forZones: [{name: east}, {name: west}], forNodes: [{name: here}]}}
`, ConvertEndpointSlice)
	checkErrors(t, err)
	want := &EndpointSlice{
		Namespace: "shop", Name: "web-1", Service: "web", Headless: true, Family: IPv6,
		Ports: []EndpointPort{{"http", TCP, 8080}, {"", UDP, 53}},
		Endpoints: []Endpoint{
			{Addr: addrs("fd01::1")[0], Node: "here", Serving: true, Terminating: true, Weight: 255},
			{Addr: addrs("fd01::2")[0], Ready: true, Serving: true, Weight: 255, Hints: &Hints{Nodes: []string{"here"}, Zones: []string{"east", "west"}}},
		},
	}
	if diff := cmp.Diff(want, got, compareValues); diff != "" {
		t.Error(diff)
	}
}

func TestR5WhatASliceCannotSay(t *testing.T) {
	got, err := convert(t, `
addressType: IPv4
ports: [{port: 8080}, {name: a, port: 70000}, {name: b, port: 1, protocol: QUIC}, {name: http, port: 8080}]
endpoints:
- {addresses: []}
- {addresses: ["fd01::1"]}
- {addresses: [host.example]}
- {addresses: [10.1.0.1, host.example]}
`, ConvertEndpointSlice)
	checkErrors(t, err,
		"ports[0].name … expected a name",
		"ports[1].port: 70000",
		`ports[2].protocol: "QUIC"`,
		"endpoints[0].addresses … an address",
		`endpoints[1].addresses[0]: "fd01::1": expected an IPv4 address`,
		`endpoints[2].addresses[0]: "host.example"`,
	)
	if len(got.Ports) != 1 || len(got.Endpoints) != 1 || got.Endpoints[0].Addr != addrs("10.1.0.1")[0] {
		t.Errorf("%+v", got)
	}
	got, err = convert(t, `{addressType: FQDN, ports: [{name: http, port: 80}], endpoints: [{addresses: [host.example]}]}`, ConvertEndpointSlice)
	checkErrors(t, err)
	if got.Family != 0 || len(got.Endpoints) != 0 {
		t.Errorf("FQDN: %+v", got)
	}
	_, err = convert(t, `{addressType: IPX}`, ConvertEndpointSlice)
	checkErrors(t, err, `addressType … "IPX"`)
}

func TestWeightAnnotation(t *testing.T) {
	for value, want := range map[string]uint8{"0": 0, "1": 1, "255": 255} {
		if s := slice("s", []string{"a"}, weight(value)); s.Endpoints[0].Weight != want {
			t.Errorf("%q is %d", value, s.Endpoints[0].Weight)
		}
	}
	for _, value := range []string{"", "-1", "256", "1.5", "heavy", " 3"} {
		in := &discoveryv1.EndpointSlice{AddressType: "IPv4", Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}}}}
		in.Annotations = map[string]string{AnnotationWeight: value}
		s, err := ConvertEndpointSlice(in)
		checkErrors(t, err, "metadata.annotations[beeline.io/weight] … 0 to 255")
		if s.Endpoints[0].Weight != 1 {
			t.Errorf("%q is %d", value, s.Endpoints[0].Weight)
		}
	}
}

func TestConvertNode(t *testing.T) {
	got, err := convert(t, `
metadata: {name: here, labels: {topology.kubernetes.io/zone: east}}
spec: {podCIDR: 10.1.0.0/24, podCIDRs: [10.1.0.0/24, "fd01::/64", nonsense]}
status:
  addresses:
  - {type: Hostname, address: here}
  - {type: ExternalIP, address: 203.0.113.9}
  - {type: InternalIP, address: 192.0.2.1}
  - {type: InternalIP, address: "2001:db8::1"}
  - {type: InternalIP, address: nonsense}
`, ConvertNode)
	checkErrors(t, err, `status.addresses[4].address: "nonsense"`, `spec.podCIDRs[2]: "nonsense"`)
	want := &Node{Name: "here", Zone: "east", Addresses: addrs("192.0.2.1", "2001:db8::1", "203.0.113.9"), PodCIDRs: prefixes("10.1.0.0/24", "fd01::/64")}
	if diff := cmp.Diff(want, got, compareValues); diff != "" {
		t.Error(diff)
	}
	got, err = convert(t, `{metadata: {name: here}, spec: {podCIDR: 10.1.0.0/24}}`, ConvertNode)
	checkErrors(t, err)
	if len(got.PodCIDRs) != 1 {
		t.Errorf("only podCIDR: %v", got.PodCIDRs)
	}
}

func TestConvertPod(t *testing.T) {
	got, err := convert(t, `
metadata: {namespace: shop, name: web-0, uid: u1, creationTimestamp: "2026-01-02T03:04:05Z", deletionTimestamp: "2026-01-02T03:05:05Z"}
spec:
  nodeName: here
  initContainers: [{name: sidecar, restartPolicy: Always, ports: [{containerPort: 9, hostPort: 9}]}]
  containers:
  - {name: a, ports: [{containerPort: 80}, {containerPort: 81, hostPort: 8081, hostIP: "127.0.0.1"}]}
  - {name: b, ports: [{containerPort: 53, hostPort: 53, protocol: UDP, hostIP: "::"}]}
  - {name: c, ports: [{containerPort: 0, hostPort: 1}, {containerPort: 1, hostPort: 99999}, {containerPort: 1, hostPort: 1, hostIP: x}, {containerPort: 1, hostPort: 1, protocol: X}]}
status: {phase: Running, podIP: 10.1.0.1, podIPs: [{ip: 10.1.0.1}, {ip: "fd01::1"}]}
`, ConvertPod)
	checkErrors(t, err, "spec.containers[2].ports[0].containerPort: 0", "spec.containers[2].ports[1].hostPort: 99999",
		`spec.containers[2].ports[2].hostIP: "x"`, `spec.containers[2].ports[3].protocol: "X"`)
	want := &Pod{
		Namespace: "shop", Name: "web-0", UID: "u1", Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Node: "here", Deleting: true,
		IPs:       addrs("10.1.0.1", "fd01::1"),
		HostPorts: []PodPort{{addrs("127.0.0.1")[0], 8081, 81, TCP}, {HostPort: 53, ContainerPort: 53, Protocol: UDP}},
	}
	if diff := cmp.Diff(want, got, compareValues); diff != "" {
		t.Error(diff)
	}
}

func TestConvertServiceCIDR(t *testing.T) {
	got, err := convert(t, `{metadata: {name: kubernetes}, spec: {cidrs: [10.0.0.1/16, x]}}`, ConvertServiceCIDR)
	checkErrors(t, err, `spec.cidrs[1]: "x"`)
	if diff := cmp.Diff(&ServiceCIDR{Name: "kubernetes", CIDRs: prefixes("10.0.0.0/16")}, got, compareValues); diff != "" {
		t.Error(diff)
	}
}
