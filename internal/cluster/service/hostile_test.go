// SPDX-License-Identifier: Apache-2.0

package service

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// R40: addresses that an endpoint, and those that an address of a Service, may not have. Of all others, also of
// nodes' own, the rules of two objects with one address decide, as with kube-proxy.
func TestR40SpecialAddresses(t *testing.T) {
	const endpoint, external, ingress, cluster = 1, 2, 4, 8
	for _, c := range []struct {
		address string
		served  int
	}{
		{"198.51.100.7", endpoint | external | ingress | cluster},
		{"2001:db8:7::7", endpoint | external | ingress | cluster},
		{hereIP, endpoint | external | ingress | cluster},
		{"127.0.0.1", 0},
		{"127.8.9.10", 0},
		{"127.000.000.001", 0},
		{"::1", 0},
		{"::ffff:127.0.0.1", 0},
		{"0.0.0.0", 0},
		{"::", 0},
		{"224.0.0.1", 0},
		{"239.1.2.3", 0},
		{"ff02::1", 0},
		{"ff0e::1", 0},
		// A cloud's metadata. kube-proxy serves it as a load balancer's address, which only controllers write.
		{"169.254.169.254", ingress | cluster},
		{"fe80::1", ingress | cluster},
		{"fe80::1%eth0", 0},
	} {
		t.Run(c.address, func(t *testing.T) {
			got := 0
			for field, s := range map[int]*corev1.Service{
				external: v1Service("web", externalIPs(c.address)), ingress: v1Service("web", loadBalancer(c.address)), cluster: v1Service("web", clusterIP(c.address)),
			} {
				converted, err := ConvertService(s)
				all := slices.Concat(converted.ExternalIPs, converted.IngressIPs)
				if ip := converted.clusterIP(IPv4); field == cluster && ip.IsValid() {
					all = append(all, ip)
				}
				if ip := converted.clusterIP(IPv6); field == cluster && ip.IsValid() {
					all = append(all, ip)
				}
				if len(all) > 0 {
					got |= field
				}
				if (err == nil) != (len(all) > 0) {
					t.Errorf("field %d has %v, and the error %v", field, all, err)
				}
			}
			slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "web"}, AddressType: discoveryv1.AddressTypeIPv4,
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{c.address}}}}
			if a, ok := parseAddr(c.address); ok && a.Is6() {
				slice.AddressType = discoveryv1.AddressTypeIPv6
			}
			converted, err := ConvertEndpointSlice(slice)
			if len(converted.Endpoints) > 0 {
				got |= endpoint
			}
			if (err == nil) != (len(converted.Endpoints) > 0) {
				t.Errorf("%d endpoints, and the error %v", len(converted.Endpoints), err)
			}
			if got != c.served {
				t.Errorf("served in the fields %04b, want %04b (endpoint, external, ingress, cluster from the right)", got, c.served)
			}
		})
	}
}

// Errors do not repeat long values: the log and the status show them.
func TestErrorsAreShort(t *testing.T) {
	long := strings.Repeat("\x1b", 10<<20)
	annotations := map[string]string{
		AnnotationAlgorithm: long, AnnotationDSR: long, AnnotationHealthCheck: long, AnnotationHealthCheckPort: long, AnnotationWeight: long,
	}
	s := v1Service("web", externalIPs(long))
	s.Annotations = annotations
	converted, err := ConvertService(s)
	_, sliceErr := ConvertEndpointSlice(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Annotations: annotations}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{long}}},
	})
	texts := []string{err.Error(), sliceErr.Error()}
	for _, e := range converted.CheckErrors {
		texts = append(texts, e.Error())
	}
	if len(texts) != 2+2 { // two annotations of the health check are wrong
		t.Errorf("%d errors", len(texts))
	}
	for _, text := range texts {
		if len(text) > 1000 {
			t.Errorf("an error of %d octets: %.200s", len(text), text)
		}
	}
}
