// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/lab"
)

// Affinity tests (R27) use many Services with the same four endpoints: 16 pairs of choices agree by chance with
// a probability of 4^-16 < 3e-10.
const (
	stickyServices = 16
	stickyPods     = "a2 a3 b1 b2"
)

// sticky is a Service with session affinity for so many seconds.
func (w *world) sticky(name string, n uint8, pods string, seconds int32) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	w.t.Helper()
	s, slices := w.balanced(name, n, pods)
	s.Spec.Ports[0].NodePort = nodePort + int32(n)
	s.Status.LoadBalancer.Ingress = nil
	for _, f := range []family{ipv4, ipv6} {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: f.vipOf(n).Addr().String()})
	}
	s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	return s, slices
}

// vipOf is the load balancer's address of Service n.
func (f family) vipOf(n uint8) netip.AddrPort {
	return f.choose(fmt.Sprintf("203.0.113.%d", n), fmt.Sprintf("2001:db8:10::%x", n), 80)
}

// applySticky applies stickyServices Services, numbered from 1.
func (w *world) applySticky(pods string, change func(*corev1.Service)) {
	w.t.Helper()
	for n := range uint8(stickyServices) {
		s, slices := w.sticky(fmt.Sprintf("web%d", n+1), n+1, pods, 600)
		if change != nil {
			change(s)
		}
		w.write(s.Name, objects(s, slices)...)
	}
	w.must(w.folder.Await(w.agents...))
}

// pick makes one connection and returns the pod.
func pick(t *testing.T, from *lab.Host, f family, to netip.AddrPort) string {
	t.Helper()
	answer, err := ask(from, f, to)
	if err != nil {
		t.Fatalf("%s connects to %s: %v", from.Name, to, err)
	}
	return answer.Pod
}

// picks makes one connection to each of the sticky Services.
func picks(t *testing.T, from *lab.Host, f family) []string {
	t.Helper()
	var all []string
	for n := range uint8(stickyServices) {
		all = append(all, pick(t, from, f, f.clusterIP(n+1)))
	}
	return all
}

// wantSame checks that a client gets the same pods again.
func wantSame(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: connections go to %v, want %v as before", what, got, want)
	}
}

// A client keeps its pod; each pod and the node is a client of its own, and each Service has a choice of its
// own.
func TestAffinityIsPerClientAndService(t *testing.T) {
	w := startWorld(t, "node-a")
	w.applySticky(stickyPods, nil)
	inEachFamily(t, func(t *testing.T, f family) {
		first := map[string][]string{}
		for _, from := range w.hosts("a1 a2 a3 node-a") {
			mine := picks(t, from, f)
			for other, theirs := range first {
				if slices.Equal(mine, theirs) {
					t.Errorf("%s and %s get the same pods in all Services: %v", from.Name, other, mine)
				}
			}
			if len(slices.Compact(slices.Sorted(slices.Values(mine)))) == 1 {
				t.Errorf("%s gets the same pod in all Services: %v", from.Name, mine)
			}
			first[from.Name] = mine
		}
		for range 3 {
			for _, from := range w.hosts("a1 a2 a3 node-a") {
				wantSame(t, from.Name, picks(t, from, f), first[from.Name])
			}
		}
		for i := range 50 {
			if got := pick(t, w.Host("a1"), f, f.clusterIP(1)); got != first["a1"][0] {
				t.Fatalf("connection %d of a1 goes to %s, want %s as before", i, got, first["a1"][0])
			}
		}
	})
}

// A client that uses both families has a pod in each, and keeps both.
func TestAffinityOfBothFamilies(t *testing.T) {
	w := startWorld(t, "node-a")
	w.applySticky(stickyPods, nil)
	a1 := w.Host("a1")
	v4, v6 := picks(t, a1, ipv4), picks(t, a1, ipv6)
	for range 3 {
		wantSame(t, "IPv4, used in turn with IPv6", picks(t, a1, ipv4), v4)
		wantSame(t, "IPv6, used in turn with IPv4", picks(t, a1, ipv6), v6)
		wantSame(t, "IPv4 in IPv6, which is IPv4", picks(t, a1, v4Mapped), v4)
	}
}

// Affinity belongs to the port of the Service, not to one of its addresses: at each of them the client gets the
// same pod.
func TestAffinityIsSharedByAllAddresses(t *testing.T) {
	w := startWorld(t, "node-a")
	w.applySticky(stickyPods, nil)
	own := w.Host("node-a")
	inEachFamily(t, func(t *testing.T, f family) {
		want := picks(t, own, f)
		for n := range uint8(stickyServices) {
			port := uint16(nodePort + int(n) + 1)
			addresses := []netip.AddrPort{netip.AddrPortFrom(f.of(own), port), f.vipOf(n + 1)}
			for _, a := range f.loopbacks() {
				addresses = append(addresses, netip.AddrPortFrom(a.Addr(), port))
			}
			for _, to := range addresses {
				if got := pick(t, own, f, to); got != want[n] {
					t.Errorf("%s leads to %s, want %s as the ClusterIP does", to, got, want[n])
				}
			}
		}
	})
}

// Adding and removing endpoints takes no client away from one that stays, wherever it then is among them.
func TestAffinityStaysAsOthersComeAndGo(t *testing.T) {
	w := startWorld(t, "node-a")
	a1 := w.Host("a1")
	w.applySticky("b1", nil)
	v4, v6 := picks(t, a1, ipv4), picks(t, a1, ipv6)
	for _, pods := range []string{"a2 b1", "a2 a3 b1 b2", "b1 b2", "a3 b1"} {
		w.applySticky(pods, nil)
		wantSame(t, "IPv4, with endpoints "+pods, picks(t, a1, ipv4), v4)
		wantSame(t, "IPv6, with endpoints "+pods, picks(t, a1, ipv6), v6)
	}
}

// Two ports of one Service have separate choices.
func TestAffinityIsPerPort(t *testing.T) {
	w := startWorld(t, "node-a")
	w.applySticky(stickyPods, func(s *corev1.Service) {
		second := s.Spec.Ports[0]
		second.Name, second.Port, second.NodePort = "second", 81, second.NodePort+100
		s.Spec.Ports = append(s.Spec.Ports, second)
	})
	for n := range uint8(stickyServices) {
		name := fmt.Sprintf("web%d", n+1)
		_, slices := w.sticky(name, n+1, stickyPods, 600)
		for _, slice := range slices {
			second := *slice.Ports[0].DeepCopy()
			*second.Name = "second"
			slice.Ports = append(slice.Ports, second)
			slice.Name += "-second"
			slice.Ports = slice.Ports[1:]
			w.write(slice.Name, slice)
		}
	}
	w.must(w.folder.Await(w.agents...))
	a1 := w.Host("a1")
	first := picks(t, a1, ipv4)
	var second []string
	for n := range uint8(stickyServices) {
		second = append(second, pick(t, a1, ipv4, netip.AddrPortFrom(ipv4.clusterIP(n+1).Addr(), 81)))
	}
	if slices.Equal(first, second) {
		t.Errorf("both ports lead to the same pods in all Services: %v", first)
	}
	wantSame(t, "the first port, after the second was used", picks(t, a1, ipv4), first)
}

// If a client makes two first connections at once, one choice holds for both. Two threads connect at the same
// moment, until they meet between the hook's lookup and its update: in each such round, separate choices would
// differ with a probability of 3/4.
func TestAffinityOfConnectionsAtOnce(t *testing.T) {
	w := startWorld(t, "node-a")
	for n, algorithm := range service.Algorithms {
		s, slices := w.sticky("web-"+algorithm, uint8(n+1), stickyPods, 600)
		s.Annotations = map[string]string{service.AnnotationAlgorithm: algorithm}
		w.apply(s.Name, objects(s, slices)...)
	}
	tables, err := bpf.OpenTables(w.agent().BPFFS())
	w.must(err)
	for round := range 1000 {
		w.must(tables.Affinity.Walk(func(e *bpf.AffinityEntry) bool { w.must(tables.Affinity.Delete(e.Key)); return true }))
		pods := w.connectAtOnce(t, ipv4.clusterIP(uint8(1+round%2)))
		if pods[0] != pods[1] {
			t.Fatalf("round %d: two first connections at once went to %s and %s, want one pod", round, pods[0], pods[1])
		}
	}
}

// connectAtOnce connects two sockets of a pod on two synchronised threads, and returns which pods answer.
func (w *world) connectAtOnce(t *testing.T, to netip.AddrPort) (pods [2]string) {
	t.Helper()
	var sockets [2]*hostSocket
	for i := range sockets {
		sockets[i] = ipv4.socket(t, w.Host("a1"), unix.SOCK_NONBLOCK)
	}
	var ready atomic.Int32
	var together sync.WaitGroup
	for _, s := range sockets {
		together.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for ready.Add(1); ready.Load() < int32(len(sockets)); {
			}
			s.connect(to) // in progress; the result follows below
		})
	}
	together.Wait()
	for i, s := range sockets {
		if err := s.await(); err != nil {
			t.Fatalf("connect: %v", err)
		}
		pods[i] = s.ask().Pod
		s.close()
	}
	return pods
}
