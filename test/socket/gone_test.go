// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"beeline.io/beeline/internal/shortcut/socket/sockgc"
	"beeline.io/beeline/test/needs"
	"beeline.io/beeline/test/node"
	"golang.org/x/sys/unix"
)

// withEachMethod runs a test once for each method of ending sockets, with an agent on node-a that is not
// started yet.
func withEachMethod(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	for _, method := range []sockgc.Method{sockgc.Iterator, sockgc.Netlink} {
		t.Run(string(method), func(t *testing.T) {
			needsMethod(t, method)
			w := newWorld(t, "node-a")
			w.agent().Flags = []string{"--terminate-sockets", string(method)}
			test(t, w)
			if got := w.sockets().Method; got != string(method) {
				t.Errorf("the status says that sockets end by %q, want %q", got, method)
			}
		})
	}
}

// needsMethod skips a test on a kernel that lacks a method.
func needsMethod(t *testing.T, method sockgc.Method) {
	t.Helper()
	if method == sockgc.Iterator {
		needs.Kernel(t, needs.SockDestroy)
	}
}

// askers are the hosts with sockets: two pods and the node itself.
const askers = "a1 a3 node-a"

// What cleanup does before it removes the tables: by each method, all UDP sockets that are connected by a Service end,
// and others stay.
func TestUDPSocketsOfServicesEndAtOnce(t *testing.T) {
	withEachMethod(t, func(t *testing.T, w *world) {
		w.start()
		w.apply("dns", objects(w.udp("dns", 1, "a2 b1"))...)
		var byService, direct []*connectedSocket
		for _, f := range families {
			for _, host := range w.hosts(askers) {
				byService = append(byService, w.connectUDP(t, f, host, f.clusterIP(1)))
				direct = append(direct, w.connectUDP(t, f, host, f.pod(w.Host("b1"))))
			}
		}
		ended, _, err := sockgc.EndAll(w.agent().BPFFS(), sockgc.Method(w.sockets().Method))
		if err != nil || ended != len(byService) {
			t.Errorf("%d sockets were ended (%v), want %d", ended, err, len(byService))
		}
		wantAllEnded(byService)
		wantUntouched(direct)
	})
}

// R29, K7: when a backend is removed, every connected UDP socket with it ends at once, in pods and on the node.
// Sockets of other backends, and those connected to the same pod by its own address, are not affected.
func TestUDPSocketEndsWithItsBackend(t *testing.T) {
	withEachMethod(t, func(t *testing.T, w *world) {
		w.start()
		for _, f := range families {
			w.apply("dns", objects(w.udp("dns", 1, "a2 b1"))...)
			w.apply("other", objects(w.udp("other", 2, "b1"))...)
			var gone, stay []*connectedSocket
			for _, host := range w.hosts(askers) {
				for range 10 {
					s := w.connectUDP(t, f, host, f.clusterIP(1))
					if s.pod == "b1" {
						gone = append(gone, s)
					} else {
						stay = append(stay, s)
					}
				}
				stay = append(stay, w.connectUDP(t, f, host, f.clusterIP(2)))
				stay = append(stay, w.connectUDP(t, f, host, f.pod(w.Host("b1"))))
			}
			if len(gone) == 0 {
				t.Fatal("none of 30 sockets has the backend to be removed")
			}
			w.sweepsAfter(func() { w.apply("dns", objects(w.udp("dns", 1, "a2"))...) })
			for _, s := range gone {
				s.wantEnded()
				s.mustConnect(s.to) // as the program would
				if got := s.exchangeConnected(s.to).Pod; got != "a2" {
					t.Errorf("%s, connected again, has %s, want a2", s.what, got)
				}
			}
			wantUntouched(stay)
		}
	})
}

// R29: it does not matter how a backend is removed: with all others, with the Service, or by conditions. R12: a
// terminating one that serves is not gone.
func TestUDPSocketEndsHoweverItsBackendGoes(t *testing.T) {
	w := startWorld(t, "node-a")
	original := func() (*corev1.Service, []*discoveryv1.EndpointSlice) { return w.udp("dns", 1, "b1 b2") }
	condition := func(pod string, how func(*discoveryv1.Endpoint)) {
		s, slices := original()
		endpoints(slices, w.Host(pod), how)
		w.apply("dns", objects(s, slices)...)
	}
	notServing := func(e *discoveryv1.Endpoint) {
		e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false)}
	}
	for name, test := range map[string]struct {
		change func()
		all    bool // b2 is removed, too
	}{
		"replaced":     {change: func() { w.apply("dns", objects(w.udp("dns", 1, "b2 b3"))...) }},
		"no endpoints": {change: func() { w.apply("dns", objects(w.udp("dns", 1, ""))...) }, all: true},
		"deleted":      {change: func() { w.remove("dns") }, all: true},
		"not serving":  {change: func() { condition("b1", notServing) }},
		"other port": {change: func() {
			s, slices := original()
			s.Spec.Ports[0].Port = 81
			w.apply("dns", objects(s, slices)...)
		}, all: true},
	} {
		t.Run(name, func(t *testing.T) {
			w.apply("dns", objects(original())...)
			first, second := w.connectToEach(t, 1, "b1", "b2")
			w.sweepsAfter(test.change)
			wantAllEnded(first)
			if test.all {
				wantAllEnded(second)
			} else {
				wantUntouched(second)
			}
		})
	}
	t.Run("terminating", func(t *testing.T) {
		w.apply("dns", objects(original())...)
		first, second := w.connectToEach(t, 1, "b1", "b2")
		condition("b1", draining)
		w.quiet()
		wantUntouched(first)
		w.sweepsAfter(func() { condition("b1", dying) })
		wantAllEnded(first)
		wantUntouched(second)
	})
}

// R29: a program blocked in recv(2) is woken.
func TestUDPSocketThatWaitsIsWoken(t *testing.T) {
	withEachMethod(t, func(t *testing.T, w *world) {
		w.start()
		w.apply("dns", objects(w.udp("dns", 1, "b1"))...)
		s := w.connectUDP(t, ipv4, w.Host("a1"), ipv4.clusterIP(1))
		result := make(chan error, 1)
		go func() {
			_, err := unix.Read(s.fd, make([]byte, 1))
			for err == unix.EINTR { // with SO_RCVTIMEO the kernel does not restart the call, see signal(7)
				_, err = unix.Read(s.fd, make([]byte, 1))
			}
			result <- err
		}()
		w.remove("dns")
		if err := <-result; err != unix.ECONNABORTED {
			t.Errorf("recv: %v, want ECONNABORTED", err)
		}
	})
}

// R29, R37: the next agent catches up on changes made while no agent was running.
func TestUDPSocketEndsAtTheAgentsStart(t *testing.T) {
	withEachMethod(t, func(t *testing.T, w *world) {
		w.start()
		w.apply("dns", objects(w.udp("dns", 1, "b1 b2"))...)
		first, second := w.connectToEach(t, 1, "b1", "b2")
		w.must(w.agent().Kill())
		w.write("dns", objects(w.udp("dns", 1, "b2"))...)
		wantUntouched(first)
		w.start()
		w.quiet()
		wantAllEnded(first)
		wantUntouched(second)
	})
}

// R29: it also finishes the work of an agent that was killed between its change of the tables and the GC pass.
// An agent that ends no sockets stands for it.
func TestUDPSocketEndsThoughTheTablesAreRightAlready(t *testing.T) {
	w := newWorld(t, "node-a")
	w.agent().Flags = []string{"--terminate-sockets", "off"}
	w.start()
	w.apply("dns", objects(w.udp("dns", 1, "b1 b2"))...)
	first, second := w.connectToEach(t, 1, "b1", "b2")
	w.apply("dns", objects(w.udp("dns", 1, "b2"))...)
	wantUntouched(first)
	w.must(w.agent().Kill())
	w.agent().Flags = nil
	w.start()
	wantAllEnded(first)
	w.quiet()
	wantUntouched(second)
}

// R29: sockets of a namespace without processes, which is only mounted.
func TestUDPSocketEndsInANamespaceWithoutProcesses(t *testing.T) {
	withEachMethod(t, func(t *testing.T, w *world) {
		w.start()
		w.apply("dns", objects(w.udp("dns", 1, "b1"))...)
		pod := w.Host("a3")
		var all []*connectedSocket
		for _, f := range families {
			all = append(all, w.connectUDP(t, f, pod, f.clusterIP(1)))
		}
		w.must(pod.KillServer())
		pod.StopSockets()
		w.sweepsAfter(func() { w.remove("dns") })
		wantAllEnded(all)
	})
}

// R29: more sockets than one read of the iterator returns.
func TestManyUDPSocketsEnd(t *testing.T) {
	withEachMethod(t, func(t *testing.T, w *world) {
		const many = 2500
		w.start()
		w.apply("dns", objects(w.udp("dns", 1, "b1"))...)
		w.quiet()
		var all []*connectedSocket
		for i := range many {
			f := families[i%len(families)]
			s := &connectedSocket{udpSocket: f.datagrams(t, w.Host("a1")), what: "one of many", to: f.clusterIP(1)}
			s.mustConnect(s.to)
			all = append(all, s)
		}
		w.sweepsAfter(func() { w.remove("dns") })
		wantAllEnded(all)
		if got := w.sockets().EndedUDP; got != many {
			t.Errorf("the status counts %d sockets, want %d", got, many)
		}
		if want := fmt.Sprintf("sockets=%d ", many); !strings.Contains(w.agent().Log.(*node.Log).String(), want) {
			t.Errorf("they did not end in one GC pass: the log does not contain %q", want)
		}
	})
}

// R29: creating and removing namespaces meanwhile does no harm.
func TestUDPSocketEndsWhileNamespacesComeAndGo(t *testing.T) {
	w := startWorld(t, "node-a")
	stop := w.churnNamespaces()
	defer stop()
	for range 10 {
		w.apply("dns", objects(w.udp("dns", 1, "b1"))...)
		s := w.connectUDP(t, ipv6, w.Host("a1"), ipv6.clusterIP(1))
		w.sweepsAfter(func() { w.remove("dns") })
		s.wantEnded()
		if st := w.sockets(); st.LastError != "" {
			t.Errorf("the GC pass failed: %s", st.LastError)
		}
	}
}
