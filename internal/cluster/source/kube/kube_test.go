// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/internal/cluster/service"
)

// world has one object of each kind.
func world() []runtime.Object {
	off := map[string]string{service.AnnotationSocketShortcut: "off"}
	return []runtime.Object{
		svc("web", "10.96.0.10"), slice("web", "10.10.1.11"), node("node-a", "192.168.100.1"), pod("p", "node-a"),
		&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Annotations: off}},
		&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "vm", Annotations: off}, Handler: "vm"},
	}
}

var allOfWorld = []string{
	"+EndpointSlice/web-1", "+Namespace/default", "+Node/node-a", "+Pod/p", "+RuntimeClass/vm", "+Service/web", "+ServiceCIDR/kubernetes",
}

// All kinds are one event, and so is each later change.
func TestFollow(t *testing.T) {
	s := startServer(t)
	s.apply(world()...)
	r := receive(t, s, nil)
	r.want(allOfWorld...)
	if !r.last.Synced || len(r.last.Problems) > 0 {
		t.Fatalf("synced %v, problems: %v", r.last.Synced, r.last.Problems)
	}
	s.apply(svc("api", "10.96.0.11"))
	r.want("+Service/api")
	s.apply(svc("api", "10.96.0.12"))
	r.want("+Service/api")
	if ip := r.objects[service.Ref{Kind: service.KindService, Namespace: "default", Name: "api"}].(*service.Service).ClusterIPs[0]; ip != "10.96.0.12" {
		t.Errorf("changed to %s", ip)
	}
	for _, o := range world() {
		s.remove(o)
		r.want("-" + strings.ReplaceAll(fmt.Sprintf("%T", o)[strings.LastIndex(fmt.Sprintf("%T", o), ".")+1:]+key(o), "default/", "/"))
	}
	if c := r.source.Remote(); !c.Connected || c.LastSeen.IsZero() || len(c.WaitingFor) > 0 {
		t.Errorf("connection: %+v", c)
	}
	for _, q := range s.requests() {
		if q.agent != "beeline/test" {
			t.Errorf("%s requested by %q", q.resource, q.agent)
		}
		if !q.watch {
			t.Errorf("%s was listed, although the server streams lists", q.resource)
		}
	}
}

// Changes of fields that the rules do not use cause no event: a Node's heartbeats are frequent.
func TestHeartbeat(t *testing.T) {
	s := startServer(t)
	s.apply(world()...)
	r := receive(t, s, nil)
	r.want(allOfWorld...)
	for i := range 20 {
		n := node("node-a", "192.168.100.1")
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Reason: fmt.Sprint(i)}}
		n.Labels = map[string]string{"seen": fmt.Sprint(i)}
		s.apply(n)
	}
	s.apply(node("node-b", "192.168.100.2"))
	r.want("+Node/node-b")
}

// R1: a Service that gets the label of another proxy is removed, and is added again without it.
func TestServiceProxyName(t *testing.T) {
	s := startServer(t)
	const label = service.LabelServiceProxyName
	s.apply(svc("a", "10.96.0.1"), svc("b", "10.96.0.2", label, "other"), svc("c", "10.96.0.3", label, "ours"))
	r := receive(t, s, nil)
	r.want("+Service/a")
	s.apply(svc("a", "10.96.0.1", label, "other"))
	r.want("-Service/a")
	s.apply(svc("b", "10.96.0.2"))
	r.want("+Service/b")
	s.apply(svc("b", "10.96.0.2", label, ""))
	r.want("-Service/b")

	r = receive(t, s, func(o *Options) { o.ServiceProxyName = "ours" })
	r.want("+Service/c")
	s.apply(svc("a", "10.96.0.1"))
	r.want("+Service/a")
	s.apply(svc("a", "10.96.0.1", label, "ours"))
	r.want("+Service/a")
	s.apply(svc("c", "10.96.0.3", label, "other"))
	r.want("-Service/c")
}

// R2, R3: headless Services and slices with the headless label are not received.
func TestHeadless(t *testing.T) {
	for name, old := range map[string]bool{"new server": false, "server without the field selector": true} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t)
			s.noServiceFields = old
			headless := slice("a", "10.10.1.11")
			headless.Labels[corev1.IsHeadlessService] = ""
			s.apply(svc("a", "None"), headless, svc("b", "10.96.0.2"), slice("b", "10.10.1.12"))
			r := receive(t, s, nil)
			r.want("+EndpointSlice/b-1", "+Service/b")
			delete(headless.Labels, corev1.IsHeadlessService)
			s.apply(headless)
			r.want("+EndpointSlice/a-1")
			headless.Labels[corev1.IsHeadlessService] = ""
			s.apply(headless)
			r.want("-EndpointSlice/a-1")
		})
	}
}

// Pods of other nodes are not received.
func TestPodsOfThisNode(t *testing.T) {
	s := startServer(t)
	s.apply(pod("here", "node-a"), pod("there", "node-b"), pod("nowhere", ""))
	r := receive(t, s, nil)
	r.want("+Pod/here")
	s.apply(pod("nowhere", "node-a"))
	r.want("+Pod/nowhere")
	s.remove(pod("there", "node-b"), pod("here", "node-a"))
	r.want("-Pod/here")
}

// A server without streaming lists, with paging, and JSON only.
func TestOldServer(t *testing.T) {
	s := startServer(t)
	s.noWatchList, s.pages, s.jsonOnly = true, true, true
	const services = 1234
	for i := range services {
		s.apply(svc(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.%d.%d", i/250, i%250+1)))
	}
	r := receive(t, s, nil)
	if ev := r.next(); !ev.Synced || len(r.objects) != services {
		t.Fatalf("synced %v, %d objects", ev.Synced, len(r.objects))
	}
	pages := 0
	for _, q := range s.requests() {
		if q.resource == "services" && !q.watch {
			pages++
		}
	}
	if pages != 3 {
		t.Errorf("listed in %d pages", pages)
	}
	s.remove(svc("s7", ""))
	r.want("-Service/s7")
}

// Changes while the receiver is busy are one event, without objects that are back to their old value.
func TestBusyReceiver(t *testing.T) {
	s := startServer(t)
	s.apply(svc("same", "10.96.0.1"), svc("gone", "10.96.0.2"))
	r := receive(t, s, nil)
	r.want("+Service/gone", "+Service/same")
	s.apply(svc("first", "10.96.0.3"))
	// From now on its event waits for the receiver.
	r.wait("an event waits", func() bool { return r.pending() == 0 && r.known("first") })
	for i := range 500 {
		s.apply(svc("many", fmt.Sprintf("10.96.1.%d", i%250+1)))
		s.apply(svc("same", fmt.Sprintf("10.96.2.%d", i%250+1)))
	}
	s.apply(svc("same", "10.96.0.1"))
	s.remove(svc("gone", ""))
	r.wait("all has arrived", func() bool { return !r.known("gone") })
	r.want("+Service/first")
	r.want("-Service/gone", "+Service/many")
}

// pending returns how many objects are waiting for an event.
func (r *receiver) pending() int {
	r.source.state.mu.Lock()
	defer r.source.state.mu.Unlock()
	return len(r.source.state.before)
}

// known reports whether the source has received a Service of namespace default.
func (r *receiver) known(name string) bool {
	r.source.state.mu.Lock()
	defer r.source.state.mu.Unlock()
	return r.source.state.kinds[service.KindService].objects[service.Ref{Kind: service.KindService, Namespace: "default", Name: name}] != nil
}

// An error in an object is reported with its name, and the rest of the object is used.
func TestBadObject(t *testing.T) {
	s := startServer(t)
	bad := svc("bad", "10.96.0.9")
	bad.Spec.ExternalIPs = []string{"10.0.0.1", "no address"}
	s.apply(bad, svc("web", "10.96.0.10"))
	r := receive(t, s, nil)
	r.until("both Services", func() bool { return r.has(service.KindService, "bad") && r.has(service.KindService, "web") })
	r.problem("warning: Service default/bad: spec.externalIPs[1]", "no address")
	s.apply(svc("web", "10.96.0.11"))
	r.want("+Service/web")
	r.problem("Service default/bad")
	bad.Spec.ExternalIPs = bad.Spec.ExternalIPs[:1]
	s.apply(bad)
	if ev := r.next(); len(ev.Problems) > 0 || len(ev.Changes) > 0 {
		t.Errorf("problems %v, changes %v", ev.Problems, ev.Changes)
	}
	bad.Spec.ExternalIPs[0] = "?"
	s.apply(bad)
	r.want("+Service/bad")
	r.problem("Service default/bad")
	s.remove(bad)
	r.want("-Service/bad")
	if len(r.last.Problems) > 0 {
		t.Error(r.last.Problems)
	}
}
