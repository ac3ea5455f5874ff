// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// Where the proxies on node-b answer. kube-proxy serves NodePorts, and with them healthCheckNodePorts, at the
// loopback addresses, so that both may have the same ports.
const (
	proxyHealth   = "127.0.0.1:10256"
	proxyMetrics  = "127.0.0.1:10249"
	beelineHealth = "127.0.0.1:10266"
)

// healthTest is kube-proxy and Beeline on node-b.
type healthTest struct {
	*Cluster
	node  *lab.Host
	proxy *KubeProxy
	agent *node.Agent
}

// R34, R35: /healthz, /livez and healthCheckNodePorts answer as kube-proxy does, beside it on one node, in every
// state of the Service and of the Node. What goes wrong becomes Events.
func TestHealth(t *testing.T) {
	t.Parallel()
	c := New(t)
	h := &healthTest{Cluster: c, node: c.Lab.Host("node-b")}
	var err error
	h.proxy, err = c.StartKubeProxy(t.Context(), h.node, func(config *kubeproxy.KubeProxyConfiguration) {
		config.NodePortAddresses = []string{"127.0.0.0/8", "::1/128"}
	})
	must(t, err)
	h.agent = c.startAgent(t, "node-b", "--healthz-bind-address="+beelineHealth, "--metrics-bind-address="+proxyMetrics)
	t.Run("healthCheckNodePort", h.testService)
	t.Run("a port that another program uses", h.testConflict)
	t.Run("Events", h.testLost)
	t.Run("the Node", h.testNode)
}

func (h *healthTest) testService(t *testing.T) {
	web := h.localService(t, "web", 30)
	here, also, there := h.Lab.Host("b1"), h.Lab.Host("b2"), h.Lab.Host("a1")
	no, yes := false, true
	terminating := discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
	for _, step := range []struct {
		name   string
		pods   []*lab.Host
		change func(slices []*discoveryv1.EndpointSlice)
		v4, v6 int
	}{
		{"no endpoints", nil, nil, 0, 0},
		{"none here", []*lab.Host{there}, nil, 0, 0},
		{"one here", []*lab.Host{here, there}, nil, 1, 1},
		{"two here", []*lab.Host{here, also}, nil, 2, 2},
		{"each family for itself", []*lab.Host{here, also}, func(s []*discoveryv1.EndpointSlice) { s[1].Endpoints = s[1].Endpoints[:1] }, 2, 1},
		{"an address with two ports", []*lab.Host{here}, func(s []*discoveryv1.EndpointSlice) {
			name, port := "admin", int32(9090)
			s[0].Ports = append(s[0].Ports, discoveryv1.EndpointPort{Name: &name, Port: &port})
		}, 1, 1},
		{"terminating", []*lab.Host{here, also}, func(s []*discoveryv1.EndpointSlice) {
			s[0].Endpoints[0].Conditions = terminating
			s[1].Endpoints[0].Conditions, s[1].Endpoints[1].Conditions = terminating, terminating
		}, 1, 0},
		{"not ready", []*lab.Host{here}, func(s []*discoveryv1.EndpointSlice) {
			s[0].Endpoints[0].Conditions.Ready, s[1].Endpoints[0].Conditions.Ready = &no, &no
		}, 0, 0},
	} {
		h.setSlices(t, web.Name, step.pods, step.change)
		h.awaitBoth(t, h.proxy, h.agent)
		for family, want := range []int{step.v4, step.v6} {
			theirs, ours := h.healthPort(t, web, family)
			if ours != theirs || ours.weight() != want {
				t.Errorf("%s: Beeline answers\n%v\nkube-proxy\n%v\nwant %d endpoints", step.name, ours, theirs, want)
			}
		}
	}
}

// web has lost its endpoints, and kube-proxy has the port of the metrics. The Service of marks has not lost any,
// though its slices change after it.
func (h *healthTest) testLost(t *testing.T) {
	web, err := h.Client.CoreV1().Services(Namespace).Get(t.Context(), "web", metav1.GetOptions{})
	must(t, err)
	event := h.awaitEvent(t, "beeline", string(condition.EndpointsLost.Code))
	if event.Regarding.UID != web.UID || event.Regarding.Name != web.Name || event.Type != corev1.EventTypeWarning {
		t.Errorf("the Event is about %+v, type %s", event.Regarding, event.Type)
	}
	// An Event of the Node, with the UID with which kubectl looks for those.
	event = h.awaitEvent(t, "beeline", string(condition.ListenFailed.Code))
	if event.Regarding.Kind != "Node" || event.Regarding.Name != h.node.Name || string(event.Regarding.UID) != h.node.Name || !strings.Contains(event.Note, proxyMetrics) {
		t.Errorf("the Event is about %+v: %s", event.Regarding, event.Note)
	}
	must(t, h.Client.CoreV1().Services(Namespace).Delete(t.Context(), web.Name, metav1.DeleteOptions{}))
	eventually(t, "nothing listens at the port of a deleted Service", func() error {
		conn, err := h.node.Dial(t.Context(), "tcp", healthAddress(h.node.Addr4, web))
		if err == nil {
			conn.Close()
			return errors.New("it is open")
		}
		return nil
	})
}

// Both cannot listen, and say so alike; Beeline serves as soon as the port is free.
func (h *healthTest) testConflict(t *testing.T) {
	const port = 32123
	other, err := h.node.Listen("tcp", fmt.Sprintf("[::]:%d", port))
	must(t, err)
	defer other.Close()
	taken := h.localService(t, "taken", 31, func(s *corev1.Service) { s.Spec.HealthCheckNodePort = port })
	h.setSlices(t, taken.Name, []*lab.Host{h.Lab.Host("b1")}, nil)
	theirs := h.awaitEvent(t, "kube-proxy", "FailedToStartServiceHealthcheck")
	ours := h.awaitEvent(t, "beeline", "FailedToStartServiceHealthcheck")
	if ours.Type != theirs.Type || ours.Action != theirs.Action || ours.Regarding.Name != theirs.Regarding.Name || ours.Regarding.UID != taken.UID {
		t.Errorf("the Events differ:\n%+v\n%+v", ours, theirs)
	}
	if !strings.Contains(ours.Note, "node-b") || !strings.Contains(ours.Note, "address already in use") {
		t.Errorf("the note is %q", ours.Note)
	}
	status, err := h.agent.Status()
	must(t, err)
	if !status.Conditions.Has(condition.HealthCheckNodePortNotServed) {
		t.Errorf("the conditions are\n%s", status.Conditions)
	}
	must(t, other.Close())
	eventually(t, "Beeline serves the port", func() error {
		r, err := h.get(t.Context(), healthURL(h.node.Addr4, taken))
		if err == nil && r.weight() != 1 {
			err = fmt.Errorf("%v", r)
		}
		return err
	})
	status, err = h.agent.Status()
	must(t, err)
	if status.Conditions.Has(condition.HealthCheckNodePortNotServed) {
		t.Errorf("the conditions are still\n%s", status.Conditions)
	}
}

// The states of the Node. The last ones cannot be undone.
func (h *healthTest) testNode(t *testing.T) {
	ctx, nodes := t.Context(), h.Client.CoreV1().Nodes()
	const finalizer = "beeline.io/test"
	taint := corev1.Taint{Key: service.TaintToBeDeleted, Effect: corev1.TaintEffectNoSchedule}
	for _, step := range []struct {
		name    string
		change  func() error
		healthz int
		reason  string
	}{
		{"as it is", func() error { return nil }, 200, ""},
		{"tainted by the autoscaler", func() error {
			return h.updateNode(ctx, func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, taint) })
		}, 503, taint.Key},
		{"not any more", func() error {
			return h.updateNode(ctx, func(n *corev1.Node) {
				n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == taint.Key })
			})
		}, 200, ""},
		{"being deleted", func() error {
			err := h.updateNode(ctx, func(n *corev1.Node) { n.Finalizers = append(n.Finalizers, finalizer) })
			return errors.Join(err, nodes.Delete(ctx, h.node.Name, metav1.DeleteOptions{}))
		}, 503, "is being deleted"},
		{"gone", func() error {
			err := h.updateNode(ctx, func(n *corev1.Node) { n.Finalizers = nil })
			return errors.Join(err, h.agent.WaitFor("without its Node", func(s *api.Status) bool { return s.NodeDeleted }))
		}, 503, "is being deleted"},
	} {
		must(t, step.change())
		for path, want := range map[string]int{"/healthz": step.healthz, "/livez": 200} {
			var theirs, ours response
			eventually(t, step.name, func() (err error) {
				if theirs, err = h.get(ctx, "http://"+proxyHealth+path); err != nil {
					return err
				}
				if ours, err = h.get(ctx, "http://"+beelineHealth+path); err != nil {
					return err
				}
				if theirs.status != want || ours.status != want {
					return fmt.Errorf("kube-proxy answers\n%v\nBeeline\n%v\nwant %d", theirs, ours, want)
				}
				return nil
			})
			if why := ours.takeReasons(); (why == "") != (want == 200) || want != 200 && !strings.Contains(why, step.reason) {
				t.Errorf("%s: %s gives the reasons %q, want %q", step.name, path, why, step.reason)
			}
			if ours.masked() != theirs.masked() {
				t.Errorf("%s: %s of Beeline\n%v\nof kube-proxy\n%v", step.name, path, ours, theirs)
			}
		}
	}
}

// localService creates a Service with a healthCheckNodePort and no endpoints.
func (h *healthTest) localService(t *testing.T, name string, n uint8, change ...func(*corev1.Service)) *corev1.Service {
	t.Helper()
	s := NewService(name, n, nil)
	s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
	for _, f := range change {
		f(s)
	}
	created, err := h.CreateService(t.Context(), s)
	must(t, err)
	return created
}

func (h *healthTest) setSlices(t *testing.T, service string, pods []*lab.Host, change func([]*discoveryv1.EndpointSlice)) {
	t.Helper()
	all := node.Slices(service, pods...)
	if change != nil {
		change(all)
	}
	for _, s := range all {
		must(t, put(t.Context(), h.Client.DiscoveryV1().EndpointSlices(Namespace), s))
	}
}

func (h *healthTest) updateNode(ctx context.Context, change func(*corev1.Node)) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n, err := h.Client.CoreV1().Nodes().Get(ctx, h.node.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(n)
		_, err = h.Client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
		return err
	})
}

// healthPort asks both proxies at the healthCheckNodePort of a Service, over IPv4 or IPv6.
func (h *healthTest) healthPort(t *testing.T, s *corev1.Service, family int) (theirs, ours response) {
	t.Helper()
	loopback := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}[family]
	theirs, err := h.get(t.Context(), healthURL(loopback, s))
	must(t, err)
	ours, err = h.get(t.Context(), healthURL([]netip.Addr{h.node.Addr4, h.node.Addr6}[family], s))
	must(t, err)
	return theirs, ours
}

func healthAddress(a netip.Addr, s *corev1.Service) string {
	return net.JoinHostPort(a.String(), strconv.Itoa(int(s.Spec.HealthCheckNodePort)))
}

func healthURL(a netip.Addr, s *corev1.Service) string { return "http://" + healthAddress(a, s) + "/" }

// awaitEvent waits for an Event of a program.
func (h *healthTest) awaitEvent(t *testing.T, program, reason string) (found eventsv1.Event) {
	t.Helper()
	eventually(t, fmt.Sprintf("an Event %s of %s", reason, program), func() error {
		all, err := h.Client.EventsV1().Events(Namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, found = range all.Items {
			if found.ReportingController == program && found.Reason == reason {
				return nil
			}
		}
		return fmt.Errorf("%d other Events", len(all.Items))
	})
	return found
}
