// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"beeline.io/beeline/internal/cluster/service"
)

// These checks reject what an API server would reject, as far as Beeline reads it. They do not repeat the
// problems that the converters of package service report.

const (
	wantLabel     = "want at most 63 lower-case letters, digits and '-', a letter or digit at both ends"
	wantSubdomain = "want lower-case letters, digits, '-' and '.', a letter or digit at both ends of each part, at most 253 in all"
)

// checkMeta checks the metadata of all kinds, and sets the default namespace.
func checkMeta(c *complaints, m metav1.Object, k service.Kind, namespaced bool) {
	switch name := m.GetName(); {
	case name == "" && m.GetGenerateName() != "":
		c.errorf("metadata.name", "missing; generateName needs an API server, so write a name")
	case name == "":
		c.errorf("metadata.name", "missing; write a name")
	case (k == service.KindService || k == service.KindNamespace) && validation.IsDNS1123Label(name) != nil:
		c.errorf("metadata.name", "%q: %s", name, wantLabel)
	case validation.IsDNS1123Subdomain(name) != nil:
		c.errorf("metadata.name", "%q: %s", name, wantSubdomain)
	}
	switch namespace := m.GetNamespace(); {
	case !namespaced && namespace != "":
		c.errorf("metadata.namespace", "%q: a %s has no namespace; remove it", namespace, k)
	case !namespaced:
	case namespace == "":
		m.SetNamespace(metav1.NamespaceDefault)
	case validation.IsDNS1123Label(namespace) != nil:
		c.errorf("metadata.namespace", "%q: %s", namespace, wantLabel)
	}
}

// defaultEndpointSlice sets the API server's defaults: a port without a name gets the empty name.
func defaultEndpointSlice(_ *complaints, in *discoveryv1.EndpointSlice) {
	for i := range in.Ports {
		if in.Ports[i].Name == nil {
			in.Ports[i].Name = new(string)
		}
	}
}

func checkEndpointSlice(c *complaints, in *discoveryv1.EndpointSlice) {
	if in.Labels[discoveryv1.LabelServiceName] == "" {
		c.warnf("metadata.labels", "no label %s, so its endpoints serve no Service; write the Service's name there", discoveryv1.LabelServiceName)
	}
	names := firstOf{}
	for i, p := range in.Ports {
		field, name := fmt.Sprintf("ports[%d].name", i), ""
		if p.Name != nil {
			name = *p.Name
		}
		if name != "" && validation.IsDNS1123Label(name) != nil {
			c.errorf(field, "%q: %s", name, wantLabel)
		}
		names.check(c, name, field, fmt.Sprintf("%q", name), "%s already has this name; give each port a different name")
	}
	if in.AddressType != discoveryv1.AddressTypeIPv4 && in.AddressType != discoveryv1.AddressTypeIPv6 {
		return // host names, or an error of the converter
	}
	for i := range in.Endpoints {
		checkEndpoint(c, i, &in.Endpoints[i], in.AddressType)
	}
}

// checkEndpoint writes a path only for an error: there are many endpoints.
func checkEndpoint(c *complaints, index int, in *discoveryv1.Endpoint, t discoveryv1.AddressType) {
	field := func(name string) string { return fmt.Sprintf("endpoints[%d].%s", index, name) }
	if len(in.Addresses) == 0 {
		c.errorf(field("addresses"), "empty; write the endpoint's address, or remove the endpoint")
	}
	for i, s := range in.Addresses {
		at := func() string { return fmt.Sprintf("%s[%d]", field("addresses"), i) }
		a, err := netip.ParseAddr(strings.TrimSpace(s))
		switch {
		case s == "":
			c.errorf(at(), "empty; write an %s address", t)
		case err != nil && i > 0:
			// The converter reads only the first address, and is more lenient (R8).
			c.errorf(at(), "%q: want an %s address", s, t)
		case err != nil:
		case service.FamilyOf(a).String() != string(t):
			c.errorf(at(), "%q: want an %s address, as addressType says; put other addresses into a slice of their own", s, t)
		case a.IsLoopback() || a.IsLinkLocalUnicast():
			// They would mean a different host on each node; the API server rejects them.
			c.errorf(at(), "%q: an endpoint cannot have a loopback or link-local address; write the address at which other nodes reach it", s)
		}
	}
	if in.NodeName != nil && validation.IsDNS1123Subdomain(*in.NodeName) != nil {
		c.errorf(field("nodeName"), "%q: %s", *in.NodeName, wantSubdomain)
	}
}

func checkNode(c *complaints, in *corev1.Node) {
	if cidrs := in.Spec.PodCIDRs; len(cidrs) > 0 && in.Spec.PodCIDR != "" && cidrs[0] != in.Spec.PodCIDR {
		c.errorf("spec.podCIDR", "%q: want the first of spec.podCIDRs, %q, or remove it", in.Spec.PodCIDR, cidrs[0])
	}
	checkPrefixes(c, "spec.podCIDRs", in.Spec.PodCIDRs)
}

func checkPod(c *complaints, in *corev1.Pod) {
	checkShortcut(c, in.Annotations)
	ports := firstOf{}
	for i, container := range in.Spec.Containers {
		for j, p := range container.Ports {
			if p.HostPort == 0 {
				continue
			}
			key := fmt.Sprintf("%s %d/%s", p.HostIP, p.HostPort, orTCP(p.Protocol))
			ports.check(c, key, fmt.Sprintf("spec.containers[%d].ports[%d].hostPort", i, j),
				fmt.Sprint(p.HostPort), "%s is the same; choose another port, protocol or hostIP")
		}
	}
}

func checkNamespace(c *complaints, in *corev1.Namespace) { checkShortcut(c, in.Annotations) }

func checkRuntimeClass(c *complaints, in *nodev1.RuntimeClass) {
	checkShortcut(c, in.Annotations)
	if in.Handler == "" {
		c.errorf("handler", "missing; write its name in the nodes' container runtimes")
	}
}

// checkShortcut only warns: the object is used without the annotation, like one from an API server, which
// accepts any value.
func checkShortcut(c *complaints, annotations map[string]string) {
	switch v, given := annotations[service.AnnotationSocketShortcut]; service.Shortcut(v) {
	case service.ShortcutOn, service.ShortcutOff:
	default:
		if given {
			c.warnf("metadata.annotations["+service.AnnotationSocketShortcut+"]", "%.40q: want \"on\" or \"off\"; ignored", v)
		}
	}
}

func checkServiceCIDR(c *complaints, in *networkingv1.ServiceCIDR) {
	if len(in.Spec.CIDRs) == 0 {
		c.errorf("spec.cidrs", "empty; write the range of the Services' addresses, as in 10.96.0.0/16")
	}
	checkPrefixes(c, "spec.cidrs", in.Spec.CIDRs)
}

// checkPrefixes allows at most one prefix of each family, without host bits.
func checkPrefixes(c *complaints, field string, prefixes []string) {
	families := firstOf{}
	for i, s := range prefixes {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil {
			continue // left to the converter, which is more lenient (R8)
		}
		at := fmt.Sprintf("%s[%d]", field, i)
		if m := p.Masked(); m != p {
			c.errorf(at, "%q: has bits set after the first %d; write %s", s, p.Bits(), m)
		}
		families.check(c, service.FamilyOf(p.Addr()).String(), at, fmt.Sprintf("%q", s), "%s is of the same family; write one prefix for each family")
	}
}

// firstOf maps each value to the first field that has it.
type firstOf map[string]string

// check reports an error if an earlier field has the same value; %s in reason stands for that field.
func (f firstOf) check(c *complaints, value, field, shown, reason string) {
	if first, ok := f[value]; ok {
		c.errorf(field, "%s: "+reason, shown, first)
		return
	}
	f[value] = field
}

func orTCP(p corev1.Protocol) corev1.Protocol {
	if p == "" {
		return corev1.ProtocolTCP
	}
	return p
}
