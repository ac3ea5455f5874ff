// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"beeline.io/beeline/internal/report/condition"
)

// H1, H2: backends that answer wrongly, too late or not at all get no clients, over TCP and, if the check uses
// another port, over UDP; when they recover, they do. H4: when all are down, the Service refuses.
func TestHealthChecks(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorld(t, "--edge-mode="+mode)
		well, wrong, slow, refusing := w.newHealthServer("a1"), w.newHealthServer("a2"), w.newHealthServer("b1"), w.newHealthServer("b2")
		wrong.status.Store(http.StatusInternalServerError)
		slow.status.Store(0)
		refusing.refuse()
		s, all := w.public("a1", "a2", "b1", "b2")
		annotate(s, map[string]string{"": "http", "path": "/healthz"})
		w.apply("web", objects(s, all)...)
		w.wantDown("a2", "b1", "b2")
		w.wantWhy("a2", "status 500, wanted 200-399")
		w.wantWhy("b1", "timeout: no answer within 500ms")
		w.wantWhy("b2", "connection refused")
		w.wantPods("a1")
		if text := w.serviceShow(); !strings.Contains(text, "http GET /healthz") || strings.Count(text, "DOWN for") != 12 {
			t.Errorf("service show prints:\n%s", text)
		}
		if c := w.status().Conditions.Wrong(); !strings.Contains(c.String(), "12 of 16") {
			t.Errorf("conditions:\n%s", c)
		}

		wrong.status.Store(http.StatusNoContent)
		slow.status.Store(http.StatusOK)
		w.wantDown("b2")
		w.wantPods("a1", "a2", "b1")
		refusing.listen()
		w.wantDown()
		w.wantPods("a1", "a2", "b1", "b2")

		for _, p := range []*healthServer{well, wrong, slow, refusing} {
			p.status.Store(http.StatusServiceUnavailable)
		}
		w.wantDown("a1", "a2", "b1", "b2")
		w.wantPods()
		// H4: unless the Service's annotation says to serve anyway.
		annotate(s, map[string]string{"": "http", "path": "/healthz", "all-down": "serve"})
		w.apply("web", objects(s, all)...)
		w.wantPods("a1", "a2", "b1", "b2")
		well.status.Store(http.StatusOK)
		w.wantDown("a2", "b1", "b2")
		w.wantPods("a1")
	})
}

// R30: a connection to a backend that fails its check survives. R29: a UDP flow moves to another.
func TestConnectionsOutliveAFailedCheck(t *testing.T) {
	w := borrowWorld(t, "--edge-mode=tc")
	leaving := w.newHealthServer("b1")
	s, all := w.public("b1")
	annotate(s, map[string]string{"": "tcp"})
	w.apply("web", objects(s, all)...)
	w.wantWell()
	var tcp, udp []net.Conn
	for _, to := range addresses(w.Host("node-a"), nodePort) {
		tcp, udp = append(tcp, w.open("tcp", to)), append(udp, w.open("udp", to))
	}
	for _, conn := range append(tcp, udp...) {
		if pod := w.served(conn); pod != "b1" {
			t.Fatalf("served by %s", pod)
		}
	}
	w.newHealthServer("a1")
	s, all = w.public("a1", "b1")
	annotate(s, map[string]string{"": "tcp"})
	w.apply("web", objects(s, all)...)
	leaving.refuse()
	w.wantDown("b1")
	w.wantPods("a1")
	for _, conn := range tcp {
		if pod := w.served(conn); pod != "b1" {
			t.Errorf("a connection that was open is served by %s", pod)
		}
	}
	for _, conn := range udp {
		w.eventually("the flow goes to a1", func() bool { return w.served(conn) == "a1" })
	}
}

// H5: annotations can change at any time; wrong ones are named, and the previous valid check stays in use. A
// Service without them serves all endpoints.
func TestHealthCheckIsEdited(t *testing.T) {
	w := borrowWorld(t, "--edge-mode=tc")
	w.newHealthServer("a1")
	w.newHealthServer("b1").status.Store(http.StatusInternalServerError)
	s, all := w.public("a1", "b1")
	apply := func(annotations map[string]string) {
		t.Helper()
		annotate(s, annotations)
		w.apply("web", objects(s, all)...)
	}
	apply(map[string]string{"": "http", "path": "/healthz"})
	w.wantDown("b1")

	apply(map[string]string{"": "http", "path": "healthz", "fal": "2"})
	w.wantPods("a1")
	text := w.serviceShow()
	for _, words := range []string{
		`annotation beeline.io/health-check-path: "healthz": write a path with a leading slash, such as /healthz`,
		`annotation beeline.io/health-check-fal: there is no such annotation, did you mean "beeline.io/health-check-fall"?`,
		"until then the previous valid check stays in use", "http GET /healthz",
	} {
		if !strings.Contains(text, words) {
			t.Errorf("service show does not say %q:\n%s", words, text)
		}
	}
	if s := w.status(); s.Source.Errors > 0 || !slices.ContainsFunc(s.Conditions, func(c condition.Condition) bool {
		return c.Code == condition.SourceWarning.Code && strings.Contains(c.Message, "web.yaml:") && strings.Contains(c.Message, "health-check-path")
	}) {
		t.Errorf("the conditions are\n%s", s.Conditions)
	}

	apply(map[string]string{"": "http", "path": "/other", "status": "500"})
	w.wantDown("a1")
	w.wantPods("b1")
	s.Annotations = nil
	w.apply("web", objects(s, all)...)
	w.wantPods("a1", "b1")
	if h := w.status().Health; len(h.Down) > 0 || h.Targets > 0 || h.Counters.Changes == 0 {
		t.Errorf("without a check: %+v", h)
	}
	apply(map[string]string{"": "https", "rise": "0"})
	w.wantPods("a1", "b1")
	if text := w.serviceShow(); !strings.Contains(text, "until then its endpoints are not checked") {
		t.Errorf("service show prints:\n%s", text)
	}
}

// H6: a new agent takes no healthy backend out of service, and no unhealthy one back, before it has probed.
func TestHealthOutlivesTheAgent(t *testing.T) {
	w := borrowWorld(t, "--edge-mode=tc")
	well := w.newHealthServer("a1")
	w.newHealthServer("b1").status.Store(http.StatusInternalServerError)
	s, all := w.public("a1", "b1")
	annotate(s, map[string]string{"": "http", "path": "/healthz", "fall": "100"})
	w.apply("web", objects(s, all)...)
	w.wantDown("b1")
	w.wantPods("a1")
	for range 2 {
		w.must(w.agent.Kill())
		well.status.Store(0) // neither up nor down: that would take a hundred probes
		w.must(w.agent.Start())
		tables, err := w.agent.Tables()
		w.must(err)
		for _, f := range tables.Services[0].Frontends {
			for _, b := range f.FromOutside.Backends {
				if at := netip.MustParseAddrPort(b.Address).Addr(); at != w.Host("a1").Addr4 && at != w.Host("a1").Addr6 {
					t.Errorf("the next agent has %s at %s", b.Address, f.Address)
				}
			}
		}
		w.wantPods("a1")
		well.status.Store(http.StatusOK)
		w.wantDown("b1")
	}
}

// H3: a check goes to the backend itself, even if its address and port are also another Service's: else it
// would report that Service's backends.
func TestHealthCheckIsDirect(t *testing.T) {
	w := borrowWorld(t, "--edge-mode=tc")
	asked, other := w.newHealthServer("b1"), w.newHealthServer("a2")
	other.status.Store(http.StatusInternalServerError)
	for _, pod := range []string{"b1", "a1"} { // behind the edge, and on this node
		if pod == "a1" {
			asked = w.newHealthServer("a1")
		}
		hiding, slices := w.everywhere("hiding", 7, "a2")
		hiding.Spec.ExternalIPs = []string{w.Host(pod).Addr4.String(), w.Host(pod).Addr6.String()}
		hiding.Spec.Ports = hiding.Spec.Ports[:1]
		hiding.Spec.Ports[0].Port = 9000
		for _, slice := range slices {
			slice.Ports = slice.Ports[:1]
			*slice.Ports[0].Port = 9000
		}
		w.apply("hiding", objects(hiding, slices)...)
		s, all := w.public(pod)
		annotate(s, map[string]string{"": "http", "path": "/healthz"})
		before := asked.asked.Load()
		w.apply("web", objects(s, all)...)
		w.eventually("the backend itself is probed, in both families", func() bool { return asked.asked.Load() >= before+8 })
		w.wantWell()
		if n := other.asked.Load(); n > 0 {
			t.Errorf("the other Service's backend was probed %d times", n)
		}
		w.must(w.folder.Remove("web"))
		w.must(w.folder.Await(w.agent))
	}
}
