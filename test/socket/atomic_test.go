// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// variant is one of the forms that a Service has in turn.
type variant struct {
	pods   string
	change func(*corev1.Service, []*discoveryv1.EndpointSlice)
}

// variants have one ClusterIP, and nothing else in common.
var variants = []variant{
	{"a2", nil},
	{"b1", nil},
	{"a2 a3", nil},
	{"b1 b2", nil},
	{"a2", inOtherSlices},
	{"a3 b2", func(s *corev1.Service, _ []*discoveryv1.EndpointSlice) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}},
	{"b2", func(s *corev1.Service, of []*discoveryv1.EndpointSlice) {
		for _, slice := range of { // its last endpoints are terminating
			draining(&slice.Endpoints[0])
		}
	}},
	{"a3", func(s *corev1.Service, of []*discoveryv1.EndpointSlice) {
		s.Name = "heir" // another Service gets the address
		inOtherSlices(s, of)
	}},
}

// inOtherSlices renames the slices of the endpoints.
func inOtherSlices(s *corev1.Service, of []*discoveryv1.EndpointSlice) {
	for _, slice := range of {
		slice.Name += "-more"
		slice.Labels[discoveryv1.LabelServiceName] = s.Name
	}
}

func (w *world) objectsOf(v variant) []runtime.Object {
	s, slices := w.web("web", 1, v.pods)
	if v.change != nil {
		v.change(s, slices)
	}
	return objects(s, slices)
}

// Two hundred changes of a Service, during connections of all pods in all families: none fails, and once a
// change is in effect none gets the previous state.
func TestChangesAreAtomic(t *testing.T) {
	w := newWorld(t, "node-a", "node-b")
	// Room for two variants and no more: on this node, what one change frees is needed at once for the
	// next.
	w.agent().Flags = []string{"--max-slots=16", "--max-backends=8", "--max-services=4", "--max-frontends=8"}
	w.start()
	w.apply("web", w.objectsOf(variants[0])...)
	var loads []*load
	for i, f := range families {
		from := w.hosts([]string{"a1 b1", "a2 b2", "a3 b3"}[i])
		loads = append(loads, w.startLoad(f.name, from, f, f.clusterIP(1), "a2 a3 b1 b2"))
	}
	order := rand.New(rand.NewPCG(1, 2)) // the same each time
	changes := 200
	if testing.Short() {
		changes = 70
	}
	for i := range changes {
		v := variants[order.IntN(len(variants))]
		w.apply("web", w.objectsOf(v)...)
		for _, from := range w.hosts("a1 b1 node-a") {
			for _, f := range []family{ipv4, ipv6} {
				answer, err := ask(from, f, f.clusterIP(1))
				if err != nil || !slices.Contains(strings.Fields(v.pods), answer.Pod) {
					t.Errorf("change %d, to %s: %s connects to %s and gets %q (%v)", i, v.pods, from.Name, f.clusterIP(1), answer.Pod, err)
				}
			}
		}
	}
	for _, l := range loads {
		l.wantNoFailure(t)
	}
	for _, a := range w.agents {
		if c := w.counters(a); c.ConnectNoBackend != 0 || c.RecordFailed != 0 || c.AffinityFailed != 0 {
			t.Errorf("%s: the hooks found damaged or full tables: %+v", a.Host.Name, c)
		}
	}
}

// A Service that is added and removed while clients connect either exists or not: connections are refused by
// the ServiceCIDR, or answered. Nothing is half done, and no other Service is affected.
func TestServiceComesAndGoesUnderLoad(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("steady", objects(w.web("steady", 2, "a2 b1"))...)
	l := w.startLoad("another Service", w.hosts("a1 a3"), ipv4, ipv4.clusterIP(2), "a2 b1")
	for range 30 {
		w.apply("web", objects(w.web("web", 1, "b2"))...)
		if got, err := ask(w.Host("a1"), ipv4, ipv4.clusterIP(1)); got.Pod != "b2" {
			t.Errorf("the Service exists, but a connection gets %q (%v)", got.Pod, err)
		}
		w.remove("web")
		if got, err := ask(w.Host("a1"), ipv4, ipv4.clusterIP(1)); err == nil || !strings.Contains(err.Error(), "operation not permitted") {
			t.Errorf("the Service is removed, but a connection gets %q (%v)", got.Pod, err)
		}
	}
	l.wantNoFailure(t)
}
