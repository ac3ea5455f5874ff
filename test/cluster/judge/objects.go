// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"beeline.io/beeline/test/cluster"
	"beeline.io/beeline/test/lab"
)

// Ports of the Services. Node ports are counted from the first.
const (
	portSecond    = 443
	portUnknown   = 81
	firstNodePort = 30000
	firstOwnPort  = 20000 // where the address is the node's own
	// Offsets of the node ports of second ports, of no Service and of health checks, so that the API server
	// chooses none of them.
	nodePortSecond, nodePortUnknown, nodePortHealth = 680, 1360, 2040
	maxScenarios                                    = nodePortSecond - 2 // and two that are not drawn (hairpin.go)
)

// families are those of the Service, the first its own choice.
func (s *Scenario) families() []string {
	switch s.Families {
	case "v4v6":
		return []string{"v4", "v6"}
	case "v6v4":
		return []string{"v6", "v4"}
	}
	return []string{s.Families}
}

// Name is the name of the Service.
func (s *Scenario) Name() string { return fmt.Sprintf("s%d", s.Number) }

// nodePort is the same for all protocols.
func (s *Scenario) nodePort() int { return firstNodePort + s.Number }

// Service is the scenario's Service, with its status. Session affinity is off.
func (s *Scenario) Service() *corev1.Service {
	object := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: s.Name()},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceType(s.Type),
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicy(s.Internal)),
			SessionAffinity:       corev1.ServiceAffinityNone,
			Ports:                 s.servicePorts(),
		},
	}
	if s.Label == "proxy" {
		object.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "another"}
	}
	spec := &object.Spec
	policy := corev1.IPFamilyPolicySingleStack
	if len(s.families()) == 2 {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	spec.IPFamilyPolicy = &policy
	for _, family := range s.families() {
		spec.IPFamilies = append(spec.IPFamilies, map[string]corev1.IPFamily{"v4": corev1.IPv4Protocol, "v6": corev1.IPv6Protocol}[family])
		spec.ClusterIPs = append(spec.ClusterIPs, clusterIPs.at(s.Number, family).String())
	}
	spec.ClusterIP = spec.ClusterIPs[0]
	for _, ip := range s.externalIPs() {
		spec.ExternalIPs = append(spec.ExternalIPs, ip.String())
	}
	if key, value, ok := strings.Cut(s.Selector, "="); ok {
		spec.Selector = map[string]string{key: value}
	}
	if s.External != "" {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicy(s.External)
	}
	if s.Type == string(corev1.ServiceTypeLoadBalancer) {
		spec.AllocateLoadBalancerNodePorts = new(!s.NoNodePorts)
		spec.LoadBalancerSourceRanges = s.sourceRanges()
		object.Status.LoadBalancer.Ingress = s.ingress()
		if s.External == "Local" {
			spec.HealthCheckNodePort = int32(s.nodePort() + nodePortHealth)
		}
	}
	return object
}

// WithAffinity is the Service with session affinity.
func WithAffinity(object *corev1.Service) *corev1.Service {
	object = object.DeepCopy()
	object.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	object.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(3600))}}
	return object
}

// port is one port of a Service and of its endpoints.
type port struct {
	name     string
	protocol corev1.Protocol
	number   int32
}

func (s *Scenario) ports() []port {
	tcp := port{"web", corev1.ProtocolTCP, s.portKnown()}
	udp := port{"dns", corev1.ProtocolUDP, s.portKnown()}
	switch s.Ports {
	case "tcp":
		return []port{tcp}
	case "unnamed":
		return []port{{"", corev1.ProtocolTCP, s.portKnown()}}
	case "udp":
		return []port{udp}
	case "tcp+udp":
		return []port{tcp, udp}
	case "tcp+sctp":
		return []port{tcp, {"sig", corev1.ProtocolSCTP, s.portKnown()}}
	case "two":
		return []port{{"tls", corev1.ProtocolTCP, portSecond}, tcp, {"quic", corev1.ProtocolUDP, portSecond}, udp}
	}
	return nil
}

func (s *Scenario) servicePorts() []corev1.ServicePort {
	var list []corev1.ServicePort
	for _, p := range s.ports() {
		// The slices say what endpoints listen on; only the controller that writes slices reads it
		// here.
		port := corev1.ServicePort{Name: p.name, Protocol: p.protocol, Port: p.number, TargetPort: intstr.FromInt32(9)}
		if s.Selector != "" {
			port.TargetPort = intstr.FromInt32(lab.PortTCP)
		}
		if s.Type != string(corev1.ServiceTypeClusterIP) && !s.NoNodePorts {
			port.NodePort = int32(s.nodePort())
			if p.number == portSecond {
				port.NodePort += nodePortSecond
			}
		}
		list = append(list, port)
	}
	return list
}

func (s *Scenario) sourceRanges() []string {
	var list []string
	for word := range strings.SplitSeq(s.Ranges, "+") {
		list = append(list, map[string][]string{
			"pods":   {"10.10.1.0/24", "fd00:10:1::/64"},
			"node":   {"192.168.100.1/32", "fd00:100::1/128"},
			"nobody": {"192.0.2.0/24", "2001:db8:ffff::/64"},
			"all4":   {"0.0.0.0/0"},
			"all6":   {"::/0"},
		}[word]...)
	}
	return list
}
