// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source"
	"beeline.io/beeline/internal/cluster/source/manifest"
)

// Equal objects have equal results, whether from files or from an API server, in protobuf or in JSON.
func TestSameAsManifests(t *testing.T) {
	objects := append(world(), fullService(), fullSlice(), fullPod())
	dir := t.TempDir()
	var text []byte
	for _, o := range objects {
		o = o.DeepCopyObject()
		gvks, _, err := scheme.ObjectKinds(o)
		if err != nil {
			t.Fatal(err)
		}
		o.GetObjectKind().SetGroupVersionKind(gvks[0])
		document, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		text = append(append(text, "---\n"...), document...)
	}
	if err := os.WriteFile(filepath.Join(dir, "all.yaml"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	want := first(t, manifest.New(dir))
	if len(want) != len(objects) {
		t.Fatalf("%d objects from manifests", len(want))
	}
	for name, json := range map[string]bool{"protobuf": false, "JSON": true} {
		s := startServer(t)
		s.jsonOnly = json
		s.apply(objects...)
		src, _ := newSource(t, s, nil)
		if diff := cmp.Diff(want, first(t, src), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
			t.Errorf("manifests (-) and %s (+):\n%s", name, diff)
		}
	}
}

// first returns the first event of a source.
func first(t *testing.T, s source.Source) []service.Change {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	events, done := make(chan source.Event), make(chan error, 1)
	go func() { done <- s.Run(ctx, events) }()
	defer func() { cancel(); <-done }()
	select {
	case ev := <-events:
		if !ev.Synced || len(ev.Problems) > 0 {
			t.Fatalf("synced %v, problems: %v", ev.Synced, ev.Problems)
		}
		return ev.Changes
	case <-time.After(deadline):
		t.Fatal("no event")
	}
	panic("unreachable")
}

func fullService() *corev1.Service {
	s := svc("full", "10.96.0.77")
	s.CreationTimestamp = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	s.UID = types.UID("0c4e7e0e-7a0e-4a2a-9c6f-0d1c2b3a4f5e")
	s.Annotations = map[string]string{"long": "and not read", service.AnnotationHealthCheck: "https", service.AnnotationHealthCheckPort: "9000"}
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "fd00:96::77")
	s.Spec.IPFamilies = append(s.Spec.IPFamilies, corev1.IPv6Protocol)
	s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	s.Spec.Ports = []corev1.ServicePort{
		{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080},
		{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, NodePort: 30053},
	}
	s.Spec.ExternalIPs = []string{"198.51.100.7"}
	s.Spec.LoadBalancerSourceRanges = []string{"203.0.113.0/24"}
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	s.Spec.HealthCheckNodePort = 31000
	s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyCluster)
	s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(600))}}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.7", IPMode: new(corev1.LoadBalancerIPModeVIP)}, {IP: s.Spec.ExternalIPs[0]}}
	return s
}

func fullSlice() *discoveryv1.EndpointSlice {
	s := slice("full", "10.10.1.12", "10.10.2.12")
	s.Ports = []discoveryv1.EndpointPort{
		{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))},
		{Name: new("dns"), Protocol: new(corev1.ProtocolUDP), Port: new(int32(5353))},
	}
	s.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
	s.Endpoints[1].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "zone-b"}}, ForNodes: []discoveryv1.ForNode{{Name: "node-b"}}}
	s.Endpoints[1].Zone = new("zone-b")
	return s
}

func fullPod() *corev1.Pod {
	p := pod("full", "node-a")
	p.Spec.RuntimeClassName = new("vm")
	p.Spec.Containers = []corev1.Container{{
		Name: "web", Image: "web",
		Ports: []corev1.ContainerPort{{ContainerPort: 8080, HostPort: 8080, HostIP: "127.0.0.1", Protocol: corev1.ProtocolTCP}},
	}}
	p.Status.Phase = corev1.PodRunning
	p.Status.PodIP, p.Status.PodIPs = "10.10.1.12", []corev1.PodIP{{IP: "10.10.1.12"}, {IP: "fd00:10:1::12"}}
	return p
}
