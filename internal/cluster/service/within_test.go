// SPDX-License-Identifier: Apache-2.0

package service

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// R38: an address in two fields of one Service follows the external one. kube-proxy 1.36 writes a port's
// ClusterIP, external IPs and ingress IPs into one map in this order (the last one stays), looks that map up
// before NodePorts, and source ranges before both.
func TestR38TheExternalKindDecides(t *testing.T) {
	onNodePort := func(s *corev1.Service) { s.Spec.Ports[0].Port, s.Spec.Ports[0].NodePort = 30080, 30080 }
	all := func(options ...serviceOption) []Object { return []Object{service("web", options...), both} }
	ranges := prefixes("198.51.100.0/24")
	only := sources("198.51.100.0/24")
	local := "pod a b, node a b masq, outside a"
	for _, c := range []struct {
		name     string
		objects  []Object
		at       string
		kind     FrontendKind
		verdicts string
		ranges   bool
	}{
		{"the ingress IP is the ClusterIP", all(loadBalancer(webIP), only), webHTTP, LoadBalancer, "all a b masq", true},
		{"and eTP is Local", all(loadBalancer(webIP), only, eTPLocal), webHTTP, LoadBalancer, local, true},
		{"and iTP is Local", all(loadBalancer(webIP), only, iTPLocal), webHTTP, LoadBalancer, "all a b masq", true},
		{"the external IP is the ClusterIP", all(externalIPs(webIP), only), webHTTP, ExternalIP, "all a b masq", false},
		{"and eTP is Local", all(externalIPs(webIP), eTPLocal), webHTTP, ExternalIP, local, false},
		{"and iTP is Local, with none here", []Object{service("web", externalIPs(webIP), iTPLocal), elsewhere}, webHTTP, ExternalIP, "all b masq", false},
		{"both are the ClusterIP", all(loadBalancer(webIP), externalIPs(webIP), only), webHTTP, LoadBalancer, "all a b masq", true},
		{"the ingress IP is the external IP", all(loadBalancer(vip), externalIPs(vip), only), vipHTTP, LoadBalancer, "all a b masq", true},
		{"the port is the NodePort, the ingress IP the node's", all(loadBalancer(hereIP), onNodePort, only), nodeHTTP, NodePort, "all a b masq", true},
		{"the port is the NodePort, the external IP the node's", all(externalIPs(hereIP), nodePort(30080), onNodePort), nodeHTTP, NodePort, "all a b masq", false},
		{"the NodePort by itself", all(loadBalancer(vip), onNodePort, only), nodeHTTP, NodePort, "all a b masq", false},
		{"the ClusterIP by itself", all(loadBalancer(vip), only), webHTTP, ClusterIP, everywhere("a b"), false},
	} {
		table := cluster(testConfig(), c.objects...)
		_, f := find(table, c.at)
		if f.Kind != c.kind || (f.SourceRanges != nil) != c.ranges || c.ranges && !slices.Contains(f.SourceRanges, ranges[0]) {
			t.Errorf("%s: %s is a %s that admits %v", c.name, c.at, f.Kind, f.SourceRanges)
		}
		if got := verdicts(table, c.at); got != c.verdicts {
			t.Errorf("%s: at %s: %s; want %s", c.name, c.at, got, c.verdicts)
		}
		if p := problemTexts(table.Plan(web).Problems); len(p) != 0 {
			t.Errorf("%s: problems %q", c.name, p)
		}
		checkSound(t, table)
	}
}

// R38: for other objects the address remains what it is in the lower field.
func TestR38OthersMeetTheClusterIP(t *testing.T) {
	for _, c := range []struct {
		name          string
		owner, thief  *Service
		at, complaint string
	}{
		{"an older ingress IP", service("web", externalIPs(webIP), created(2)), service("thief", clusterIP("10.0.0.2"), loadBalancer(webIP), created(1)),
			webHTTP, "LoadBalancer 10.0.0.1:80/TCP belongs to Service default/web, as its ClusterIP"},
		{"an older external IP", service("web", loadBalancer(webIP), created(2)), service("thief", clusterIP("10.0.0.2"), externalIPs(webIP), created(1)),
			webHTTP, "ExternalIP 10.0.0.1:80/TCP belongs to Service default/web, as its ClusterIP"},
		{"a NodePort's ingress IP", service("web", loadBalancer(hereIP), created(2), ports(corev1.ServicePort{Name: "http", Port: 30080, NodePort: 30080})),
			service("thief", clusterIP("10.0.0.2"), loadBalancer(hereIP), created(1), ports(corev1.ServicePort{Name: "http", Port: 30080})),
			nodeHTTP, "LoadBalancer 192.0.2.1:30080/TCP belongs to Service default/web, as its NodePort"},
	} {
		table := cluster(testConfig(), c.thief, c.owner, both)
		if _, f := find(table, c.at); f.Port.Owner != web {
			t.Errorf("%s: %s belongs to %s", c.name, c.at, f.Port.Owner)
		}
		if p := problems(table, "thief"); len(p) != 1 || !strings.HasPrefix(p[0], c.complaint) {
			t.Errorf("%s: problems of the other one: %q", c.name, p)
		}
		checkSound(t, table)
	}
}
