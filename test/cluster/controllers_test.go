// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// The real controllers follow the Pods and Nodes that tests write.
func TestControllers(t *testing.T) {
	t.Parallel()
	c := New(t)
	t.Run("EndpointSlices follow Pods", c.testEndpointSlices)
	t.Run("a Node that is not ready is tainted", c.testNodeController)
	t.Run("Endpoints are mirrored", c.testMirroring)
	t.Run("the ServiceCIDR becomes ready", c.testServiceCIDR)
	t.Run("a LoadBalancer has the addresses of its status", c.testLoadBalancer)
	t.Run("the agent may do what it needs and no more", c.testAgentRole)
}

func (c *Cluster) testEndpointSlices(t *testing.T) {
	ctx := t.Context()
	for _, name := range []string{"web-1", "web-2"} {
		pod := NewPod(name, c.Lab.Host("a"+name[len("web-"):]))
		pod.Labels = map[string]string{"app": "web"}
		must(t, c.CreatePod(ctx, pod))
	}
	service := NewService("web", 10, map[string]string{"app": "web"})
	_, err := c.CreateService(ctx, service)
	must(t, err)
	c.wantEndpoints(t, "web", map[string]string{"web-1": "ready node-a", "web-2": "ready node-a"})

	must(t, c.SetPodReady(ctx, "web-1", false))
	c.wantEndpoints(t, "web", map[string]string{"web-1": "none node-a", "web-2": "ready node-a"})

	must(t, c.SetPodReady(ctx, "web-1", true))
	must(t, c.TerminatePod(ctx, "web-2"))
	c.wantEndpoints(t, "web", map[string]string{"web-1": "ready node-a", "web-2": "serving,terminating node-a"})

	must(t, c.SetPodReady(ctx, "web-2", false))
	c.wantEndpoints(t, "web", map[string]string{"web-1": "ready node-a", "web-2": "terminating node-a"})

	must(t, c.RemovePod(ctx, "web-2"))
	c.wantEndpoints(t, "web", map[string]string{"web-1": "ready node-a"})

	must(t, c.RemovePod(ctx, "web-1"))
	moved := NewPod("web-1", c.Lab.Host("b1"))
	moved.Labels = map[string]string{"app": "web"}
	must(t, c.CreatePod(ctx, moved))
	c.wantEndpoints(t, "web", map[string]string{"web-1": "ready node-b"})
}

func (c *Cluster) testNodeController(t *testing.T) {
	for _, ready := range []bool{false, true} {
		must(t, c.SetNodeReady(t.Context(), "node-b", ready))
		eventually(t, fmt.Sprintf("node-b is ready: %v", ready), func() error {
			n, err := c.Client.CoreV1().Nodes().Get(t.Context(), "node-b", metav1.GetOptions{})
			if err != nil {
				return err
			}
			tainted := slices.ContainsFunc(n.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == corev1.TaintNodeNotReady })
			if tainted == ready {
				return fmt.Errorf("taints %v", n.Spec.Taints)
			}
			return nil
		})
	}
}

func (c *Cluster) testMirroring(t *testing.T) {
	ctx := t.Context()
	_, err := c.CreateService(ctx, NewService("mirrored", 12, nil))
	must(t, err)
	endpoints := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "mirrored"}} //lint:ignore SA1019 the controller mirrors just this old kind
	//lint:ignore SA1019 see above
	endpoints.Subsets = []corev1.EndpointSubset{{
		Addresses: []corev1.EndpointAddress{{IP: c.Lab.Host("a3").Addr4.String()}},
		Ports:     []corev1.EndpointPort{{Name: "tcp", Port: 8080}},
	}}
	_, err = c.Client.CoreV1().Endpoints(Namespace).Create(ctx, endpoints, metav1.CreateOptions{})
	must(t, err)
	eventually(t, "a slice of the mirrored Endpoints", func() error {
		all, err := c.slices(t, "mirrored")
		if err == nil && len(all) != 1 {
			err = fmt.Errorf("%d slices", len(all))
		}
		return err
	})
}

func (c *Cluster) testServiceCIDR(t *testing.T) {
	eventually(t, "condition Ready of ServiceCIDR kubernetes", func() error {
		cidr, err := c.Client.NetworkingV1().ServiceCIDRs().Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err == nil && !meta.IsStatusConditionTrue(cidr.Status.Conditions, "Ready") {
			err = fmt.Errorf("conditions %v", cidr.Status.Conditions)
		}
		return err
	})
}

func (c *Cluster) testLoadBalancer(t *testing.T) {
	service := NewService("balanced", 13, nil)
	service.Spec.Type = corev1.ServiceTypeLoadBalancer
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}
	s, err := c.CreateService(t.Context(), service)
	must(t, err)
	if ingress := s.Status.LoadBalancer.Ingress; len(ingress) != 1 || ingress[0].IP != "203.0.113.1" {
		t.Errorf("the status has the ingress %v", ingress)
	}
	if s.Spec.Ports[0].NodePort == 0 {
		t.Error("the API server allocated no NodePort")
	}
}

func (c *Cluster) testAgentRole(t *testing.T) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig(UserAgent))
	must(t, err)
	config.Dial = c.Lab.Host("node-b").Dial
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	_, err = client.DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	_, err = client.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("listing Secrets: %v, want Forbidden", err)
	}
}

func (c *Cluster) slices(t *testing.T, service string) ([]discoveryv1.EndpointSlice, error) {
	list, err := c.Client.DiscoveryV1().EndpointSlices(Namespace).List(t.Context(), metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + service,
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// wantEndpoints waits until the slices of both families have these endpoints of the Service: Pod -> conditions
// and node.
func (c *Cluster) wantEndpoints(t *testing.T, service string, want map[string]string) {
	t.Helper()
	families := []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}
	eventually(t, fmt.Sprintf("endpoints of %s: %v", service, want), func() error {
		all, err := c.slices(t, service)
		if err != nil {
			return err
		}
		for _, family := range families {
			got := map[string]string{}
			for _, slice := range all {
				if slice.AddressType == family {
					maps.Insert(got, maps.All(describe(slice.Endpoints)))
				}
			}
			if !maps.Equal(got, want) {
				return fmt.Errorf("%s: %v", family, got)
			}
		}
		return nil
	})
}

// describe describes the endpoint of each Pod: "ready" stands for ready, serving and not terminating.
func describe(endpoints []discoveryv1.Endpoint) map[string]string {
	all := map[string]string{}
	for _, e := range endpoints {
		var words []string
		for _, condition := range []struct {
			name string
			set  *bool
		}{{"ready", e.Conditions.Ready}, {"serving", e.Conditions.Serving}, {"terminating", e.Conditions.Terminating}} {
			if condition.set != nil && *condition.set {
				words = append(words, condition.name)
			}
		}
		switch {
		case slices.Equal(words, []string{"ready", "serving"}):
			words = []string{"ready"}
		case len(words) == 0:
			words = []string{"none"}
		}
		all[e.TargetRef.Name] = strings.Join(words, ",") + " " + *e.NodeName
	}
	return all
}
