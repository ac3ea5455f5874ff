// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

const (
	// LabelServiceProxyName names the proxy that implements a Service (KEP-2447); k8s.io/api does
	// not export it.
	LabelServiceProxyName = "service.kubernetes.io/service-proxy-name"
	// AnnotationWeight on an EndpointSlice is the weight of each of its endpoints, an integer from
	// 0 to 255. Zero drains them.
	AnnotationWeight = "beeline.io/weight"
	// AnnotationAlgorithm on a Service selects how backends are chosen.
	AnnotationAlgorithm = "beeline.io/algorithm"
)

// ConvertService extracts the fields that the rules use from a v1 Service, with the API server's defaults for
// empty fields.
//
// The error joins one error per invalid field, with the field, its value and the expected values. The Service
// is still returned, without the invalid values; the caller decides whether to use it. The other converters
// work the same way.
func ConvertService(in *corev1.Service) (*Service, error) {
	var errs fieldErrors
	proxyName, hasProxyName := in.Labels[LabelServiceProxyName]
	s := &Service{
		Namespace:    in.Namespace,
		Name:         in.Name,
		Created:      in.CreationTimestamp.Time,
		ProxyName:    proxyName,
		HasProxyName: hasProxyName,
		Type:         cmp.Or(string(in.Spec.Type), string(corev1.ServiceTypeClusterIP)),
		ClusterIPs:   clusterIPs(&errs, &in.Spec),
		SourceRanges: errs.prefixes("spec.loadBalancerSourceRanges", in.Spec.LoadBalancerSourceRanges),
		Affinity:     affinity(&errs, &in.Spec),
		ExternalLocal: externallyAccessible(&in.Spec) &&
			in.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		InternalLocal: in.Spec.InternalTrafficPolicy != nil &&
			*in.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
		Algorithm: annotationValue[Algorithm](&errs, in.Annotations, AnnotationAlgorithm, Algorithms, strings.Join(Algorithms, " or ")),
		DSR:       annotationValue[DSR](&errs, in.Annotations, AnnotationDSR, DSRs, strings.Join(DSRs, " or ")),
		DSRHybrid: annotationValue[Switch](&errs, in.Annotations, AnnotationDSRHybrid, switches, `"true" or "false"`),
		Stateless: annotationValue[Switch](&errs, in.Annotations, AnnotationStateless, switches, `"true" or "false"`),
	}
	for i, f := range in.Spec.IPFamilies {
		switch f {
		case corev1.IPv4Protocol:
			s.IPFamilies = append(s.IPFamilies, IPv4)
		case corev1.IPv6Protocol:
			s.IPFamilies = append(s.IPFamilies, IPv6)
		default:
			// Keep the index, which pairs with that of clusterIPs (R7).
			s.IPFamilies = append(s.IPFamilies, 0)
			errs.add(fmt.Sprintf("spec.ipFamilies[%d]", i), f, "IPv4 or IPv6")
		}
	}
	for i, v := range in.Spec.ExternalIPs {
		if a, ok := errs.endpointAddr(fmt.Sprintf("spec.externalIPs[%d]", i), v); ok {
			s.ExternalIPs = append(s.ExternalIPs, a)
		}
	}
	s.IngressIPs = ingressIPs(&errs, in.Status.LoadBalancer.Ingress)
	s.Ports = servicePorts(&errs, in.Spec.Ports)
	if s.Type == string(corev1.ServiceTypeLoadBalancer) && s.ExternalLocal {
		s.HealthCheckNodePort = errs.port("spec.healthCheckNodePort", in.Spec.HealthCheckNodePort)
	}
	s.Check, s.CheckErrors = ParseHealthCheck(in.Annotations)
	s.Unknown = unknownAnnotations(KindService, in.Annotations)
	return s, errs.join()
}

// clusterIPs returns spec.clusterIPs in canonical form. "None" and empty entries keep their index, which pairs
// with that of ipFamilies (R7). Older objects have only clusterIP, which always decides whether the Service is
// headless (R3).
func clusterIPs(errs *fieldErrors, spec *corev1.ServiceSpec) []string {
	ips := slices.Clone(spec.ClusterIPs)
	if spec.ClusterIP == corev1.ClusterIPNone || len(ips) == 0 {
		ips = []string{spec.ClusterIP}
	}
	for i, ip := range ips {
		if ip == corev1.ClusterIPNone {
			continue
		}
		ips[i] = ""
		if a, ok := errs.serviceAddr(fmt.Sprintf("spec.clusterIPs[%d]", i), ip); ok {
			ips[i] = a.String()
		}
	}
	return ips
}

// annotationValue returns the value of an annotation; empty if it is not set or not valid.
func annotationValue[T ~string](errs *fieldErrors, annotations map[string]string, name string, valid []string, expected string) T {
	v, ok := annotations[name]
	if ok && !slices.Contains(valid, v) {
		errs.add("metadata.annotations["+name+"]", v, expected)
		return ""
	}
	return T(v)
}

func affinity(errs *fieldErrors, spec *corev1.ServiceSpec) time.Duration {
	switch spec.SessionAffinity {
	case "", corev1.ServiceAffinityNone:
		return 0
	case corev1.ServiceAffinityClientIP:
	default:
		errs.add("spec.sessionAffinity", spec.SessionAffinity, "ClientIP or None")
		return 0
	}
	seconds := int32(corev1.DefaultClientIPServiceAffinitySeconds)
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		if t := *c.ClientIP.TimeoutSeconds; t > 0 && t <= 86400 {
			seconds = t
		} else {
			errs.add("spec.sessionAffinityConfig.clientIP.timeoutSeconds", t, "1 to 86400 seconds")
		}
	}
	return time.Duration(seconds) * time.Second
}

// externallyAccessible reports whether externalTrafficPolicy applies.
func externallyAccessible(spec *corev1.ServiceSpec) bool {
	switch spec.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeClusterIP, "":
		return len(spec.ExternalIPs) > 0
	}
	return false
}

// ingressIPs returns the VIPs of a load balancer that preserves the destination address (R24, KEP-1860). In
// mode Proxy the balancer itself connects to a node port or a pod.
func ingressIPs(errs *fieldErrors, ingress []corev1.LoadBalancerIngress) []netip.Addr {
	var ips []netip.Addr
	for i, in := range ingress {
		if in.IPMode != nil && *in.IPMode != corev1.LoadBalancerIPModeVIP {
			continue
		}
		if a, ok := errs.serviceAddr(fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), in.IP); ok {
			ips = append(ips, a)
		}
	}
	return ips
}

func servicePorts(errs *fieldErrors, in []corev1.ServicePort) []ServicePort {
	ports := make([]ServicePort, 0, len(in))
	for i, p := range in {
		field := fmt.Sprintf("spec.ports[%d]", i)
		protocol, known := errs.protocol(field+".protocol", string(p.Protocol))
		if p.Port < 1 || p.Port > 65535 {
			errs.add(field+".port", p.Port, "a port from 1 to 65535")
			continue
		}
		if !known {
			continue
		}
		ports = append(ports, ServicePort{
			Name:     p.Name,
			Protocol: protocol,
			Port:     uint16(p.Port),
			NodePort: errs.port(field+".nodePort", p.NodePort),
		})
	}
	return ports
}

// ConvertEndpointSlice extracts the fields that the rules use from an EndpointSlice (R5, R9). It silently omits
// ports without a number and slices of host names: they are valid but mean nothing to a proxy.
func ConvertEndpointSlice(in *discoveryv1.EndpointSlice) (*EndpointSlice, error) {
	var errs fieldErrors
	_, headless := in.Labels[corev1.IsHeadlessService]
	s := &EndpointSlice{
		Namespace: in.Namespace,
		Name:      in.Name,
		Service:   in.Labels[discoveryv1.LabelServiceName],
		Headless:  headless,
	}
	switch in.AddressType {
	case discoveryv1.AddressTypeIPv4:
		s.Family = IPv4
	case discoveryv1.AddressTypeIPv6:
		s.Family = IPv6
	case discoveryv1.AddressTypeFQDN:
		return s, nil
	default:
		errs.add("addressType", in.AddressType, "IPv4, IPv6 or FQDN")
		return s, errs.join()
	}
	weight := sliceWeight(&errs, in.Annotations)
	s.Unknown = unknownAnnotations(KindEndpointSlice, in.Annotations)
	if at, err := time.Parse(time.RFC3339Nano, in.Annotations[corev1.EndpointsLastChangeTriggerTime]); err == nil {
		s.Triggered = at.UTC()
	}
	s.Ports = endpointPorts(&errs, in.Ports)
	s.Endpoints = make([]Endpoint, 0, len(in.Endpoints))
	for i := range in.Endpoints {
		if e, ok := endpoint(&errs, fmt.Sprintf("endpoints[%d]", i), &in.Endpoints[i], s.Family); ok {
			e.Weight = weight
			s.Endpoints = append(s.Endpoints, e)
		}
	}
	return s, errs.join()
}

func sliceWeight(errs *fieldErrors, annotations map[string]string) uint8 {
	v, ok := annotations[AnnotationWeight]
	if !ok {
		return 1
	}
	w, err := strconv.ParseUint(v, 10, 8)
	if err != nil {
		errs.add("metadata.annotations["+AnnotationWeight+"]", v, "an integer from 0 to 255")
		return 1
	}
	return uint8(w)
}

func endpointPorts(errs *fieldErrors, in []discoveryv1.EndpointPort) []EndpointPort {
	ports := make([]EndpointPort, 0, len(in))
	for i, p := range in {
		field := fmt.Sprintf("ports[%d]", i)
		if p.Name == nil {
			// The API server writes "" here, so this slice is from a file.
			errs.add(field+".name", nil, `a name, or "" if the Service's port has none`)
			continue
		}
		if p.Port == nil || *p.Port == 0 {
			continue // all ports: no service port can match
		}
		number := errs.port(field+".port", *p.Port)
		var name string
		if p.Protocol != nil {
			name = string(*p.Protocol)
		}
		if protocol, ok := errs.protocol(field+".protocol", name); ok && number != 0 {
			ports = append(ports, EndpointPort{Name: *p.Name, Protocol: protocol, Port: number})
		}
	}
	return ports
}

func endpoint(errs *fieldErrors, field string, in *discoveryv1.Endpoint, family Family) (Endpoint, bool) {
	if len(in.Addresses) == 0 {
		errs.add(field+".addresses", in.Addresses, "an address")
		return Endpoint{}, false
	}
	// Only the first address has a meaning (discovery/v1).
	a, ok := errs.endpointAddr(field+".addresses[0]", in.Addresses[0])
	if !ok {
		return Endpoint{}, false
	}
	if FamilyOf(a) != family {
		errs.add(field+".addresses[0]", in.Addresses[0], fmt.Sprintf("an %s address, as addressType says", family))
		return Endpoint{}, false
	}
	e := Endpoint{
		Addr:        a,
		Ready:       orDefault(in.Conditions.Ready, true),
		Serving:     orDefault(in.Conditions.Serving, true),
		Terminating: orDefault(in.Conditions.Terminating, false),
		// Few distinct names, each in many endpoints.
		Node: unique.Make(orDefault(in.NodeName, "")).Value(),
	}
	if in.Hints != nil && len(in.Hints.ForZones)+len(in.Hints.ForNodes) > 0 {
		e.Hints = &Hints{}
		for _, z := range in.Hints.ForZones {
			e.Hints.Zones = append(e.Hints.Zones, z.Name)
		}
		for _, n := range in.Hints.ForNodes {
			e.Hints.Nodes = append(e.Hints.Nodes, n.Name)
		}
	}
	return e, true
}

func orDefault[T any](p *T, d T) T {
	if p == nil {
		return d
	}
	return *p
}
