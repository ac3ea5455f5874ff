// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
)

// healthPort is where pods answer health checks, besides the port that serves.
const healthPort = "9000"

// A healthServer answers a pod's health checks as the test tells it.
type healthServer struct {
	w        *world
	pod      string
	listener net.Listener // nil: checks are refused
	status   atomic.Int64 // of its answers; 0: none
	asked    atomic.Int64
	closed   chan struct{}
}

// newHealthServer starts a health server that reports the pod as healthy.
func (w *world) newHealthServer(pod string) *healthServer {
	w.t.Helper()
	p := &healthServer{w: w, pod: pod, closed: make(chan struct{})}
	p.status.Store(http.StatusOK)
	p.listen()
	w.t.Cleanup(p.refuse)
	w.t.Cleanup(func() { close(p.closed) })
	return p
}

func (p *healthServer) listen() {
	p.w.t.Helper()
	l, err := p.w.Host(p.pod).Listen("tcp", "[::]:"+healthPort)
	p.w.must(err)
	p.listener = l
	go http.Serve(l, p)
}

func (p *healthServer) refuse() {
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
}

func (p *healthServer) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	p.asked.Add(1)
	switch status := int(p.status.Load()); {
	case status == 0:
		select {
		case <-r.Context().Done():
		case <-p.closed:
		}
	case r.URL.Path != "/healthz" && r.URL.Path != "/other":
		to.WriteHeader(http.StatusNotFound)
	default:
		to.WriteHeader(status)
	}
}

// annotate adds a health check at the health server's port. Names lack their common prefix; "" is the kind.
func annotate(s *corev1.Service, annotations map[string]string) {
	s.Annotations = map[string]string{
		service.AnnotationHealthCheckPort:     healthPort,
		service.AnnotationHealthCheckInterval: "500ms", service.AnnotationHealthCheckTimeout: "500ms",
	}
	for name, value := range annotations {
		if name != "" {
			name = "-" + name
		}
		s.Annotations[service.AnnotationHealthCheck+name] = value
	}
}

// down returns the pods whose endpoints all fail, with the reasons.
func (w *world) down() map[string]string {
	w.t.Helper()
	h, all := w.status().Health, map[string]string{}
	if h == nil {
		return all
	}
	for _, pod := range w.Pods() {
		for _, a := range addresses(pod, 0) {
			for _, b := range h.Down {
				if b.Address.Addr() == a.Addr() && !b.CheckPending {
					all[pod.Name] += a.Addr().String()[:1] + ":" + b.Why + "\n"
				}
			}
		}
	}
	return all
}

// wantDown waits until these pods fail at all addresses and ports, and no others do.
func (w *world) wantDown(pods ...string) {
	w.t.Helper()
	perPod := 4 // TCP and UDP, both families
	var got map[string]string
	w.t.Cleanup(func() {
		if w.t.Failed() {
			w.t.Logf("down were %v", got)
		}
	})
	w.eventually(strings.Join(pods, " ")+" are down, and no others", func() bool {
		got = w.down()
		if len(got) != len(pods) {
			return false
		}
		for _, pod := range pods {
			if strings.Count(got[pod], "\n") != perPod {
				return false
			}
		}
		return true
	})
}

// wantWhy waits until each of a pod's endpoints is down for a reason with these words: on a busy machine a
// probe may fail for being late, and the next one does not.
func (w *world) wantWhy(pod, words string) {
	w.t.Helper()
	got := ""
	w.t.Cleanup(func() {
		if w.t.Failed() {
			w.t.Logf("%s was down because of %q", pod, got)
		}
	})
	w.eventually(pod+" is down because of "+words, func() bool {
		got = w.down()[pod]
		return got != "" && strings.Count(got, words) == strings.Count(got, "\n")
	})
}

// wantWell waits until all endpoints have been probed and are up. The first probe alone takes one down, and on
// a busy machine it may be late.
func (w *world) wantWell() {
	w.t.Helper()
	w.must(w.agent.WaitFor("well at all endpoints", allWell))
}

func allWell(s *api.Status) bool {
	return s.Health != nil && s.Health.Targets > 0 && len(s.Health.Down) == 0
}

// wantPods waits until these pods, and no others, are in the sets of all NodePorts, and checks that they serve
// clients, or that clients are refused if there are none.
func (w *world) wantPods(pods ...string) {
	w.t.Helper()
	var want []netip.Addr
	for _, pod := range pods {
		want = append(want, w.Host(pod).Addr4, w.Host(pod).Addr6)
	}
	w.must(w.agent.WaitForTables("with "+strings.Join(pods, " ")+" at each NodePort", func(t *api.Tables) bool {
		good := 0
		for i := range t.Services {
			for _, f := range t.Services[i].Frontends {
				has := func(b api.Member) bool {
					return slices.Contains(want, netip.MustParseAddrPort(b.Address).Addr())
				}
				if f.Kind == service.NodePort && len(f.FromNode.Backends) == len(pods) && !slices.ContainsFunc(f.FromNode.Backends, func(b api.Member) bool { return !has(b) }) {
					good++
				}
			}
		}
		return good == 8 // TCP and UDP, both families, at the node's address and at localhost
	}))
	for _, to := range addresses(w.Host("node-a"), nodePort) {
		for _, network := range []string{"tcp", "udp"} {
			if len(pods) == 0 {
				w.wantRefused(network, to)
			} else {
				w.wantServed(network, to, pods...)
			}
		}
	}
}

func (w *world) serviceShow() string {
	w.t.Helper()
	text, err := w.agent.CLI("service", "show", "default/web")
	w.must(err)
	return text
}
