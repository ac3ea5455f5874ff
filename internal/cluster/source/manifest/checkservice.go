// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"beeline.io/beeline/internal/cluster/service"
)

// defaultService sets the API server's defaults: clusterIP alone stands for the list, and the addresses
// determine the families. It does not allocate missing addresses or ports.
func defaultService(c *complaints, in *corev1.Service) {
	spec := &in.Spec
	if len(spec.ClusterIPs) == 0 && spec.ClusterIP != "" {
		spec.ClusterIPs = []string{spec.ClusterIP}
		c.written = map[string]string{"spec.clusterIPs[0]": "spec.clusterIP"}
	}
	for i := len(spec.IPFamilies); i < len(spec.ClusterIPs); i++ {
		a, err := netip.ParseAddr(strings.TrimSpace(spec.ClusterIPs[i]))
		if err != nil {
			return // "None", or an error of the converter
		}
		spec.IPFamilies = append(spec.IPFamilies, corev1.IPFamily(service.FamilyOf(a).String()))
	}
}

func checkService(c *complaints, in *corev1.Service) {
	spec := &in.Spec
	checkHealth(c, in.Annotations)
	switch spec.Type {
	case "", corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
	case corev1.ServiceTypeExternalName:
		return // not proxied (R3)
	default:
		c.errorf("spec.type", "%q: want ClusterIP, NodePort, LoadBalancer or ExternalName", spec.Type)
	}
	checkPolicies(c, spec)
	checkSourceRanges(c, in)
	checkClusterIPs(c, spec, hasOtherAddresses(in))
	checkServicePorts(c, spec)
	for i, ip := range spec.ExternalIPs {
		if strings.TrimSpace(ip) == "" {
			c.errorf(fmt.Sprintf("spec.externalIPs[%d]", i), "empty; write an address, or remove it")
		}
	}
}

// checkHealth only warns, like checkShortcut: an invalid health check must not disable a Service.
func checkHealth(c *complaints, annotations map[string]string) {
	_, errs := service.ParseHealthCheck(annotations)
	for _, e := range errs {
		c.warnf("metadata.annotations["+e.Annotation+"]", "%s", e.Reason)
	}
}

func checkPolicies(c *complaints, spec *corev1.ServiceSpec) {
	const want = "%q: want Cluster or Local"
	switch spec.ExternalTrafficPolicy {
	case "":
	case corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal:
		if (spec.Type == "" || spec.Type == corev1.ServiceTypeClusterIP) && len(spec.ExternalIPs) == 0 {
			c.errorf("spec.externalTrafficPolicy", "has no effect on a Service of type ClusterIP without externalIPs; remove it")
		}
	default:
		c.errorf("spec.externalTrafficPolicy", want, spec.ExternalTrafficPolicy)
	}
	if p := spec.InternalTrafficPolicy; p != nil && *p != corev1.ServiceInternalTrafficPolicyCluster &&
		*p != corev1.ServiceInternalTrafficPolicyLocal {
		c.errorf("spec.internalTrafficPolicy", want, *p)
	}
}

// checkSourceRanges refuses what the API server refuses, and warns where clients of other networks are admitted
// nevertheless: the ranges hold at ingress addresses alone (R25).
func checkSourceRanges(c *complaints, in *corev1.Service) {
	const field, addresses = "spec.loadBalancerSourceRanges", "status.loadBalancer.ingress"
	if len(in.Spec.LoadBalancerSourceRanges) == 0 {
		return
	}
	if in.Spec.Type != corev1.ServiceTypeLoadBalancer {
		c.errorf(field, "has no effect on a Service of type %s: all clients reach it; write type: LoadBalancer, and its addresses to %s", cmp.Or(in.Spec.Type, corev1.ServiceTypeClusterIP), addresses)
		return
	}
	ingress := map[netip.Addr]bool{}
	for _, i := range in.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(i.IP); err == nil { // else a host name, or an error of the converter
			ingress[a] = true
		}
	}
	if len(ingress) == 0 {
		c.warnf(field, "has no effect without addresses in %s: all clients reach the others", addresses)
		return
	}
	for i, ip := range in.Spec.ExternalIPs {
		if a, err := netip.ParseAddr(ip); err == nil && !ingress[a] {
			c.warnf(fmt.Sprintf("spec.externalIPs[%d]", i), "all clients reach %s, also those outside %s; write it to %s instead", a, field, addresses)
		}
	}
}

// hasOtherAddresses reports whether a Service asks to be served at others than its cluster IPs.
func hasOtherAddresses(in *corev1.Service) bool {
	if len(in.Spec.ExternalIPs) > 0 {
		return true
	}
	if in.Spec.Type != corev1.ServiceTypeNodePort && in.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return false
	}
	return len(in.Status.LoadBalancer.Ingress) > 0 || slices.ContainsFunc(in.Spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort > 0 })
}

// checkClusterIPs: a Service without a cluster IP is not served (R3). That is a mistake if it has other addresses.
func checkClusterIPs(c *complaints, spec *corev1.ServiceSpec, others bool) {
	const remedy = "without one the Service is not served, at its other addresses neither; write an address, such as that of spec.externalIPs"
	ips := spec.ClusterIPs
	switch {
	case len(ips) == 0 && spec.ClusterIP == "" && others:
		c.errorf("spec.clusterIP", "missing: %s", remedy)
	case spec.ClusterIP == corev1.ClusterIPNone && others:
		c.errorf("spec.clusterIP", "None: %s", remedy)
	case len(ips) == 0 && spec.ClusterIP == "":
		c.warnf("spec.clusterIP", "missing, and addresses are not allocated for manifests: the Service has no cluster IP; write one, or None")
	case len(ips) == 0:
		checkFamily(c, "spec.clusterIP", spec.ClusterIP, spec.IPFamilies, 0)
	case spec.ClusterIP == "":
		c.errorf("spec.clusterIP", "missing; write %q, the first of spec.clusterIPs", ips[0])
	case spec.ClusterIP != ips[0]:
		c.errorf("spec.clusterIP", "%q: want the first of spec.clusterIPs, %q", spec.ClusterIP, ips[0])
	}
	families := firstOf{}
	for i, f := range spec.IPFamilies {
		families.check(c, string(f), fmt.Sprintf("spec.ipFamilies[%d]", i), string(f), "%s is the same; write each family once")
	}
	families = firstOf{}
	for i, ip := range ips {
		field := fmt.Sprintf("spec.clusterIPs[%d]", i)
		switch {
		case ip == "":
			c.errorf(field, "empty; write an address, or remove it")
		case ip == corev1.ClusterIPNone && len(ips) > 1:
			c.errorf(field, "None stands alone; remove the others")
		}
		if f := checkFamily(c, field, ip, spec.IPFamilies, i); f != "" {
			families.check(c, f, field, fmt.Sprintf("%q", ip), "%s is of the same family; write one address for each family")
		}
	}
}

// checkFamily compares an address with the family at the same index of ipFamilies, and returns its own family.
// The converter reports invalid addresses.
func checkFamily(c *complaints, field, ip string, families []corev1.IPFamily, i int) string {
	a, err := netip.ParseAddr(strings.TrimSpace(ip))
	if err != nil {
		return ""
	}
	f := service.FamilyOf(a).String()
	known := i < len(families) && (families[i] == corev1.IPv4Protocol || families[i] == corev1.IPv6Protocol)
	if known && string(families[i]) != f {
		c.errorf(field, "%q: want an %s address, as spec.ipFamilies[%d] says", ip, families[i], i)
	}
	return f
}

func checkServicePorts(c *complaints, spec *corev1.ServiceSpec) {
	if len(spec.Ports) == 0 && spec.ClusterIP != corev1.ClusterIPNone {
		c.errorf("spec.ports", "empty; write at least one port")
	}
	names, numbers, nodePorts := firstOf{}, firstOf{}, firstOf{}
	external := spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer
	for i, p := range spec.Ports {
		field := fmt.Sprintf("spec.ports[%d]", i)
		switch {
		case p.Name == "" && len(spec.Ports) > 1:
			c.errorf(field+".name", "missing; with several ports, each needs a name")
		case p.Name != "" && validation.IsDNS1123Label(p.Name) != nil:
			c.errorf(field+".name", "%q: %s", p.Name, wantLabel)
		case p.Name != "":
			names.check(c, p.Name, field+".name", fmt.Sprintf("%q", p.Name), "%s already has this name; give each port a different name")
		}
		protocol := string(orTCP(p.Protocol))
		if p.Port != 0 { // missing: an error of the converter
			numbers.check(c, fmt.Sprint(p.Port, protocol), field+".port",
				fmt.Sprintf("%d/%s", p.Port, protocol), "%s is the same; choose another port or protocol")
		}
		switch {
		case p.NodePort == 0 && spec.Type == corev1.ServiceTypeNodePort:
			c.warnf(field+".nodePort", "missing, and ports are not allocated for manifests: the port has no node port; write one, as in 30080")
		case p.NodePort == 0:
		case !external:
			c.errorf(field+".nodePort", "%d: a Service of type ClusterIP has no node ports; remove it, or write type: NodePort", p.NodePort)
		default:
			nodePorts.check(c, fmt.Sprint(p.NodePort, protocol), field+".nodePort",
				fmt.Sprintf("%d/%s", p.NodePort, protocol), "%s is the same; choose another port or protocol")
		}
	}
}
