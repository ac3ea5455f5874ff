// SPDX-License-Identifier: Apache-2.0

package service

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// fuzz passes JSON to a converter and the result to a Cluster: whatever the object is, neither may panic, and
// plans must be sound.
func fuzz[In any](f *testing.F, convert func(*In) (Object, error), seeds ...any) {
	for _, s := range seeds {
		f.Add(must(json.Marshal(s)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in := new(In)
		if json.Unmarshal(data, in) != nil {
			return
		}
		o, _ := convert(in)
		config := testConfig()
		config.RefuseForeignExternalIPs = true
		table := cluster(config, endpoints("a here"), service("other"), o)
		checkSound(t, table)
		table.Apply([]Change{gone(o)})
		checkSound(t, table)
	})
}

func FuzzConvertService(f *testing.F) {
	fuzz(f, func(in *corev1.Service) (Object, error) { return ConvertService(in) },
		v1Service("web", dualStack, nodePort(30080), loadBalancer(vip, vip6), externalIPs(" 010.0.0.1 "), sources("192.0.2.0/24"), eTPLocal, iTPLocal, clientIP),
		v1Service("web", clusterIP("None")))
}

func FuzzConvertEndpointSlice(f *testing.F) {
	fuzz(f, func(in *discoveryv1.EndpointSlice) (Object, error) { return ConvertEndpointSlice(in) },
		discoveryv1.EndpointSlice{
			AddressType: "IPv4",
			Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(1))}},
			Endpoints:   []discoveryv1.Endpoint{endpointFrom("a here notready zone=east node=here", false)},
		})
}

func FuzzConvertPod(f *testing.F) {
	fuzz(f, func(in *corev1.Pod) (Object, error) { return ConvertPod(in) }, pod("p", 1, http8000, hostPort("127.0.0.1", 1, 1, "UDP")))
}

func FuzzConvertNode(f *testing.F) {
	fuzz(f, func(in *corev1.Node) (Object, error) { return ConvertNode(in) }, corev1.Node{
		Spec:   corev1.NodeSpec{PodCIDRs: []string{"10.1.0.0/24"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: "InternalIP", Address: "192.0.2.1"}}},
	})
}

func FuzzConvertServiceCIDR(f *testing.F) {
	fuzz(f, func(in *networkingv1.ServiceCIDR) (Object, error) { return ConvertServiceCIDR(in) },
		networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.0.0.0/16", "fd00::/108"}}})
}
