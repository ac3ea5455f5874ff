// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"beeline.io/beeline/test/lab"
)

// Companion is the Service next to the scenario's, and its slices; nil if there is none. It is younger than the
// scenario's own, but its name sorts first. Values of Beside:
//
//	headless       has external IPs (probes' "beside"), which no proxy serves
//	ExternalName   the same
//	cluster IP     its ClusterIP ("otherClusterIP"), at which it has another port,
//	               is an external IP of the scenario's Service
//	rival          claims one of the external IPs of the scenario's Service
//	               ("contested"), with an endpoint of its own
//	rival without  the same, without endpoints
func (s *Scenario) Companion(l *lab.Lab) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	if s.Beside == "" {
		return nil, nil
	}
	other := Scenario{
		Number: s.Number, Type: "ClusterIP", Families: "v4v6", Ports: s.Ports, Internal: "Cluster", Slices: "one",
		Endpoints: []Endpoint{{Host: "b3", State: "ready"}},
	}
	if s.Beside == "rival without" {
		other.Endpoints = nil
	}
	object, slices := other.Service(), other.EndpointSlices(l)
	object.Name = "beside-" + s.Name()
	for i, slice := range slices {
		slice.Name = fmt.Sprintf("%s-%d", object.Name, i)
		slice.Labels[discoveryv1.LabelServiceName] = object.Name
	}
	spec := &object.Spec
	external := func(to string) {
		for _, ip := range s.listed([]string{to}) {
			spec.ExternalIPs = append(spec.ExternalIPs, ip.String())
		}
	}
	spec.ClusterIPs = []string{otherClusterIPs.of(s, "v4").String(), otherClusterIPs.of(s, "v6").String()}
	switch s.Beside {
	case "headless":
		spec.ClusterIPs = []string{corev1.ClusterIPNone}
		external("beside")
	case "ExternalName":
		*spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "elsewhere.lab.invalid", Ports: spec.Ports}
		external("beside")
	case "cluster IP":
		spec.Ports = []corev1.ServicePort{{Name: "other", Protocol: corev1.ProtocolTCP, Port: portSecond + 1}}
	case "rival", "rival without":
		external("contested")
	}
	if len(spec.ClusterIPs) > 0 {
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	return object, slices
}

// hasRival reports whether another Service claims an address of this one.
func (s *Scenario) hasRival() bool { return s.Beside == "rival" || s.Beside == "rival without" }
