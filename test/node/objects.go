// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/lab"
)

// The ranges of the lab's Services, which nothing routes.
const (
	ServiceRange4 = "10.96.0.0/16"
	ServiceRange6 = "fd00:96::/112"
)

// ClusterIPs are a pair of Service addresses, one of each family: 10.96.0.n and fd00:96::n.
func ClusterIPs(n uint8) []string {
	return []string{fmt.Sprintf("10.96.0.%d", n), fmt.Sprintf("fd00:96::%x", n)}
}

// Cluster has the objects that describe the lab: its nodes and its ServiceCIDR. Nodes have no podCIDRs if pods have
// addresses in the network of the nodes.
func Cluster(l *lab.Lab) []runtime.Object {
	all := []runtime.Object{&networkingv1.ServiceCIDR{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"},
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{ServiceRange4, ServiceRange6}},
	}}
	for _, n := range l.Nodes() {
		pod := n.Pods()[0]
		cidr, cidrs := "", []string(nil)
		if l.Shape.Pods != lab.PodsPolicy {
			cidr = netip.PrefixFrom(pod.Addr4, 24).Masked().String()
			cidrs = []string{cidr, netip.PrefixFrom(pod.Addr6, 64).Masked().String()}
		}
		all = append(all, &corev1.Node{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{corev1.LabelTopologyZone: "zone-" + n.Name}},
			Spec:       corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: cidrs},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: n.Addr4.String()},
				{Type: corev1.NodeInternalIP, Address: n.Addr6.String()},
			}},
		})
	}
	return all
}

// Service is a dual-stack ClusterIP Service with TCP port 80 ("tcp") and the
// ClusterIPs of number n, for a test to change.
func Service(name string, n uint8) *corev1.Service {
	ips := ClusterIPs(n)
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			Type:       corev1.ServiceTypeClusterIP,
			ClusterIP:  ips[0],
			ClusterIPs: ips,
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			Ports: []corev1.ServicePort{{
				Name: "tcp", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(lab.PortTCP),
			}},
		},
	}
}

// Port is a port of a Service and of its endpoints.
type Port struct {
	Name         string
	Protocol     corev1.Protocol
	Port, Target int32
}

// SetPorts replaces the ports of a Service and its EndpointSlices.
func SetPorts(service *corev1.Service, slices []*discoveryv1.EndpointSlice, ports ...Port) {
	service.Spec.Ports = nil
	for _, p := range ports {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{
			Name: p.Name, Protocol: p.Protocol, Port: p.Port, TargetPort: intstr.FromInt32(p.Target),
		})
	}
	for _, slice := range slices {
		slice.Ports = nil
		for _, p := range ports {
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Target, Protocol: &p.Protocol})
		}
	}
}

// Slices are the EndpointSlices of a Service, one for each family, with the
// pods as ready endpoints on the lab's TCP port.
func Slices(service string, pods ...*lab.Host) []*discoveryv1.EndpointSlice {
	port, name, protocol := int32(lab.PortTCP), "tcp", corev1.ProtocolTCP
	var all []*discoveryv1.EndpointSlice
	for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		slice := &discoveryv1.EndpointSlice{
			TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: fmt.Sprintf("%s-%s", service, map[discoveryv1.AddressType]string{"IPv4": "v4", "IPv6": "v6"}[family]),
				Labels: map[string]string{discoveryv1.LabelServiceName: service},
			},
			AddressType: family,
			Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
			Endpoints:   []discoveryv1.Endpoint{},
		}
		for _, pod := range pods {
			addr := pod.Addr4
			if family == discoveryv1.AddressTypeIPv6 {
				addr = pod.Addr6
			}
			ready, nodeName := true, pod.Name
			if pod.Node != nil {
				nodeName = pod.Node.Name
			}
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses:  []string{addr.String()},
				NodeName:   &nodeName,
				Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			})
		}
		all = append(all, slice)
	}
	return all
}

// Public is a Service of type NodePort with the ClusterIPs of number n, for TCP and UDP at port 80, and its
// EndpointSlices with hosts as ready endpoints.
func Public(name string, n uint8, nodePort int32, hosts ...*lab.Host) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	s, all := Service(name, n), Slices(name, hosts...)
	SetPorts(s, all,
		Port{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: 80, Target: lab.PortTCP},
		Port{Name: "udp", Protocol: corev1.ProtocolUDP, Port: 80, Target: lab.PortUDP})
	s.Spec.Type = corev1.ServiceTypeNodePort
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = nodePort
	}
	return s, all
}

// Objects is a Service with its EndpointSlices, as a Folder takes them.
func Objects(s *corev1.Service, slices []*discoveryv1.EndpointSlice) []runtime.Object {
	all := []runtime.Object{s}
	for _, slice := range slices {
		all = append(all, slice)
	}
	return all
}

// OptedOut is a running pod of the lab that has opted out of the socket hooks.
func OptedOut(host *lab.Host) *corev1.Pod {
	ips := []corev1.PodIP{{IP: host.Addr4.String()}, {IP: host.Addr6.String()}}
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: host.Name, UID: types.UID(host.PodUID()),
			Annotations: map[string]string{service.AnnotationSocketShortcut: "off"},
		},
		Spec:   corev1.PodSpec{NodeName: host.Node.Name, Containers: []corev1.Container{{Name: "c"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ips[0].IP, PodIPs: ips},
	}
}

// AwaitOptedOut waits until the agent serves the one pod that has opted out without socket hooks.
func (a *Agent) AwaitOptedOut(pod string) error {
	return a.WaitFor("without hooks for "+pod, func(s *api.Status) bool { return len(s.OptedOut.Pods) == 1 && s.OptedOut.Pods[0].Found })
}
