// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"beeline.io/beeline/internal/report/condition"
)

// The tests' world: this node is "here", another one "there", in zones "east" and "west". Endpoints have
// one-letter names: "a" is 10.1.0.1, or fd01::1, and serves on port 8080.
const (
	webIP, webIP6   = "10.0.0.1", "fd00::1"
	hereIP, hereIP6 = "192.0.2.1", "2001:db8::1"
	thereIP         = "192.0.2.2"
)

var (
	web  = Ref{KindService, "default", "web"}
	here = &Node{Name: "here", Zone: "east", Addresses: addrs(hereIP, hereIP6)}
)

func testConfig() Config {
	c := DefaultConfig()
	c.NodeName = "here"
	return c
}

// cluster returns a Cluster with the objects and node "here".
func cluster(config Config, objects ...Object) *Cluster {
	t := NewCluster(config)
	t.Apply(changes(append([]Object{here}, objects...)...))
	return t
}

func changes(objects ...Object) []Change {
	cs := make([]Change, len(objects))
	for i, o := range objects {
		cs[i] = Change{Ref: o.Ref(), Object: o}
	}
	return cs
}

func gone(o Object) Change { return Change{Ref: o.Ref()} }

func addrs(list ...string) []netip.Addr {
	var as []netip.Addr
	for _, s := range list {
		as = append(as, netip.MustParseAddr(s))
	}
	return as
}

func prefixes(list ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range list {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

// must panics if an object that should be valid is not.
func must[T any](o T, err error) T {
	if err != nil {
		panic(err)
	}
	return o
}

// Services

type serviceOption func(*corev1.Service)

// service returns default/<name> with ClusterIP 10.0.0.1 and port http 80/TCP.
func service(name string, options ...serviceOption) *Service {
	return must(ConvertService(v1Service(name, options...)))
}

func v1Service(name string, options ...serviceOption) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	clusterIP(webIP)(s)
	s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80}}
	for _, o := range options {
		o(s)
	}
	return s
}

func clusterIP(ips ...string) serviceOption {
	return func(s *corev1.Service) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies = ips[0], ips, nil
		for _, ip := range ips {
			family := corev1.IPv4Protocol
			if strings.Contains(ip, ":") {
				family = corev1.IPv6Protocol
			}
			s.Spec.IPFamilies = append(s.Spec.IPFamilies, family)
		}
	}
}

func dualStack(s *corev1.Service) { clusterIP(webIP, webIP6)(s) }

func created(second int64) serviceOption {
	return func(s *corev1.Service) { s.CreationTimestamp = metav1.Unix(second, 0) }
}

func ports(ps ...corev1.ServicePort) serviceOption {
	return func(s *corev1.Service) { s.Spec.Ports = ps }
}

func protocol(p corev1.Protocol) serviceOption {
	return func(s *corev1.Service) { s.Spec.Ports[0].Protocol = p }
}

func nodePort(port int32) serviceOption {
	return func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort = port
	}
}

func loadBalancer(ips ...string) serviceOption {
	return func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
	}
}

func sources(ranges ...string) serviceOption {
	return func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = ranges }
}

func externalIPs(ips ...string) serviceOption {
	return func(s *corev1.Service) { s.Spec.ExternalIPs = ips }
}

func eTPLocal(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func iTPLocal(s *corev1.Service) {
	local := corev1.ServiceInternalTrafficPolicyLocal
	s.Spec.InternalTrafficPolicy = &local
}

func clientIP(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }

// EndpointSlices

type sliceOption func(*discoveryv1.EndpointSlice)

// endpoints returns the slice default/web-1 of Service web with port http 8080/TCP. Each endpoint is a line
// such as "a here notready zone=east": its letter, its node ("here" or "there") and what differs from the
// default.
func endpoints(lines ...string) *EndpointSlice { return slice("web-1", lines) }

func slice(name string, lines []string, options ...sliceOption) *EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   "default",
			Name:        name,
			Labels:      map[string]string{discoveryv1.LabelServiceName: "web"},
			Annotations: map[string]string{},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
	}
	for _, o := range options {
		o(s)
	}
	for _, line := range lines {
		s.Endpoints = append(s.Endpoints, endpointFrom(line, s.AddressType == discoveryv1.AddressTypeIPv6))
	}
	return must(ConvertEndpointSlice(s))
}

func ipv6(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeIPv6 }

func udp(s *discoveryv1.EndpointSlice) { s.Ports[0].Protocol = new(corev1.ProtocolUDP) }

func weight(w string) sliceOption {
	return func(s *discoveryv1.EndpointSlice) { s.Annotations[AnnotationWeight] = w }
}

func of(service string) sliceOption {
	return func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = service }
}

func endpointFrom(line string, v6 bool) discoveryv1.Endpoint {
	words := strings.Fields(line)
	e := discoveryv1.Endpoint{Addresses: []string{address(words[0], v6)}, Hints: &discoveryv1.EndpointHints{}}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "here", "there":
			e.NodeName = new(key)
		case "notready":
			e.Conditions.Ready = new(false)
		case "notserving":
			e.Conditions.Ready, e.Conditions.Serving = new(false), new(false)
		case "terminating": // and serving, unless the line says otherwise
			e.Conditions.Ready, e.Conditions.Terminating = new(false), new(true)
		case "zone":
			e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: value})
		case "node":
			e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: value})
		default:
			panic("no such word in an endpoint: " + w)
		}
	}
	return e
}

func address(letter string, v6 bool) string {
	if len(letter) != 1 {
		return letter
	}
	if v6 {
		return fmt.Sprintf("fd01::%x", letter[0]-'a'+1)
	}
	return fmt.Sprintf("10.1.0.%d", letter[0]-'a'+1)
}

func pod(name string, second int64, ports ...corev1.ContainerPort) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, CreationTimestamp: metav1.Time{Time: time.Unix(second, 0)}}}
	p.Spec.NodeName = "here"
	p.Spec.Containers = []corev1.Container{{Ports: ports}}
	p.Status.Phase = corev1.PodRunning
	p.Status.PodIPs = []corev1.PodIP{{IP: "10.1.0.1"}}
	return p
}

func serviceCIDR(name string, cidrs ...string) *ServiceCIDR {
	return must(ConvertServiceCIDR(&networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
	}))
}

// Plan returns the plan of a Service or Pod, nil if it has none.
func (t *Cluster) Plan(ref Ref) *Plan {
	if o := t.owners[ref]; o != nil {
		return o.plan
	}
	return nil
}

// problemTexts returns the messages of conditions with their remedies.
func problemTexts(all condition.List) []string {
	texts := make([]string, len(all))
	for i, c := range all {
		texts[i] = c.Text()
	}
	return texts
}
