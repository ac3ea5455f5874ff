// SPDX-License-Identifier: Apache-2.0

package service

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// SCTP is decided like TCP. If endpoints have another port than the Service, the Service reports it, because
// packets are dropped.
func TestSCTPPorts(t *testing.T) {
	on := func(port int32) sliceOption {
		return func(s *discoveryv1.EndpointSlice) {
			s.Ports[0].Port, s.Ports[0].Protocol = &port, new(corev1.ProtocolSCTP)
		}
	}
	const (
		same = "set port and targetPort to the same port"
		give = "use the Service's other addresses (allocateLoadBalancerNodePorts: false removes the NodePort)"
		why  = ": packets are dropped, because SCTP ports are never translated: "
	)
	for _, c := range []struct {
		name    string
		service *Service
		slices  []Object
		want    []string
	}{
		{"the same port", service("web", protocol(corev1.ProtocolSCTP), externalIPs(vip)), []Object{slice("s", []string{"a here"}, on(80))}, nil},
		{"no endpoints", service("web", protocol(corev1.ProtocolSCTP)), nil, nil},
		{"another port", service("web", protocol(corev1.ProtocolSCTP), externalIPs(vip)), []Object{slice("s", []string{"a here"}, on(8080))},
			[]string{"port 80/SCTP: the endpoints have port 8080" + why + same}},
		{"another port of some", service("web", protocol(corev1.ProtocolSCTP)), []Object{slice("s", []string{"a here"}, on(80)), slice("t", []string{"b there"}, on(8080))},
			[]string{"port 80/SCTP: some endpoints have port 8080" + why + same}},
		{"a NodePort", service("web", protocol(corev1.ProtocolSCTP), nodePort(30080)), []Object{slice("s", []string{"a here"}, on(80))},
			[]string{"NodePort 30080/SCTP: the endpoints have port 80" + why + give}},
		{"a NodePort that is the same", service("web", protocol(corev1.ProtocolSCTP), nodePort(30080)), []Object{slice("s", []string{"a here"}, on(30080))},
			[]string{"port 80/SCTP: the endpoints have port 30080" + why + same}},
		{"TCP", service("web", nodePort(30080)), []Object{both}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			table := cluster(testConfig(), append(c.slices, c.service)...)
			if got := problemTexts(table.Plan(web).Problems); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	table := cluster(testConfig(), convertPod(pod("p", 1, hostPort("", 3868, 3869, "SCTP"), hostPort("", 3869, 3869, "SCTP"), hostPort("", 8000, 8080, "TCP"))))
	want := []string{"HostPort 3868/SCTP: the container has port 3869" + why + "set hostPort and containerPort to the same port"}
	if got := problemTexts(table.Plan(Ref{KindPod, "default", "p"}).Problems); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
