// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/report/condition"
)

// Clients' packets to a backend to which the node has lost the route are what status begins with, an error with the
// backend, the reason and the number of packets, until the route is back; those of new flows and of known ones.
func TestLostRouteToBackend(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := startWorld(t, "--edge-mode="+mode)
		w.route(plainRoutes + "; IP route del default")
		w.apply("web", objects(w.public("b1"))...)
		node, backend := w.Host("node-a"), w.Host("b1")
		var known []net.Conn
		for _, to := range addresses(node, nodePort) {
			conn := w.open("tcp", to)
			w.served(conn)
			known = append(known, conn)
		}
		w.wantExit(0)
		for _, lost := range []struct {
			route, cause string
			known        bool // only packets of known flows are sent
		}{
			{route: "IP route del PODS", cause: "the node has no route to that backend"},
			{route: "IP route del PODS; IP route add unreachable PODS", cause: "a route of type unreachable leads to that backend", known: true},
		} {
			w.route(lost.route)
			first := regexp.MustCompile(fmt.Sprintf(`^1 error\.\nerror    EdgeDropsToBackend: [1-9][0-9]* packets? of clients in the last minute did not reach backend (%[1]s|%[2]s) of Service default/web, backend (%[1]s|%[2]s) of Service default/web: %[3]s\n`,
				regexp.QuoteMeta(backend.Addr4.String()), regexp.QuoteMeta(backend.Addr6.String()), lost.cause))
			before := w.status().Edge.Counters["drop_no_route"]
			w.eventually("status begins with "+first.String(), func() bool {
				for i, to := range addresses(node, nodePort) {
					if lost.known {
						known[i].Write([]byte("lost\n"))
					} else {
						w.loses(to)
					}
				}
				s := w.status()
				text, _ := w.agent.CLI("status")
				if s.Edge.Counters["drop_no_route"] > before && !s.Conditions.Has(condition.EdgeDropsToBackend) {
					t.Errorf("packets are lost, and status does not know yet:\n%s", text)
				}
				return first.MatchString(text)
			})
			w.wantExit(3)
			w.route("IP route del PODS 2>/dev/null || true; " + plainRoutes)
			w.eventually("the condition ends with the route", func() bool {
				text, err := w.agent.CLI("status")
				return err == nil && strings.HasPrefix(text, "All is well.\n")
			})
		}
		w.wantServed("tcp", addresses(node, nodePort)[0], "b1")
		// A route by which packets of the client arrive, and replies do not leave.
		client := w.Host("client").Addr6.String()
		w.runOn("node-a", "ip", "-6", "route", "add", "blackhole", client)
		w.eventually("status names packets without a route to the client", func() bool {
			w.loses(addresses(node, nodePort)[1])
			text, _ := w.agent.CLI("status")
			return strings.HasPrefix(text, "1 warning.\nwarning  EdgeDropsToClients: ")
		})
		w.wantExit(4)
		w.runOn("node-a", "ip", "-6", "route", "del", "blackhole", client)
		w.wantServed("tcp", addresses(node, nodePort)[1], "b1")
	})
}

// loses sends a datagram of a new flow to an address where nobody is to answer.
func (w *world) loses(to netip.AddrPort) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if answer, err := w.Host("client").Request(ctx, "udp", to.String(), "hello"); err == nil {
		w.t.Errorf("UDP to %s is answered by %s", to, answer.Pod)
	}
}

// A Service whose clients are all refused is named with port and number of packets, until one is served.
func TestServiceThatRefuses(t *testing.T) {
	w := borrowWorld(t)
	w.apply("web", objects(w.public())...)
	to := addresses(w.Host("node-a"), nodePort)[0]
	refused := regexp.MustCompile(`ServiceRefuses: Service default/web: all that clients outside sent in the last minute was refused: [1-9][0-9]* packets to port tcp/TCP\n`)
	w.eventually("status names the Service", func() bool {
		if answer, err := w.ask("tcp", to); err == nil {
			t.Fatalf("TCP to %s is answered by %s", to, answer.Pod)
		}
		text, err := w.agent.CLI("status")
		return err != nil && refused.MatchString(text)
	})
	w.apply("web", objects(w.public("b1"))...)
	w.eventually("a client that is served ends it", func() bool {
		w.wantServed("tcp", to, "b1")
		text, err := w.agent.CLI("status")
		return err == nil && strings.HasPrefix(text, "All is well.\n")
	})
}
