// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"testing"
	"time"

	"beeline.io/beeline/internal/service"
)

// A port is a condition that has refused packets in the last minute and served none, with the number of packets, for as
// long as the Service has it.
func TestRefusingServices(t *testing.T) {
	web := service.Ref{Kind: service.KindService, Namespace: "default", Name: "web"}
	http, dns := service.Port{Owner: web, Name: "http", Protocol: service.TCP}, service.Port{Owner: web, Protocol: service.UDP}
	type pass struct {
		at    int // in seconds
		ports map[service.Port]portUse
	}
	const all = "ServiceRefuses: Service default/web: all that clients outside sent in the last minute was refused: "
	const local = "ServiceRefuses: Service default/web: all that clients outside sent in the last minute was dropped, because its traffic policy is Local and this node has no endpoint: "
	for _, c := range []struct {
		name   string
		passes []pass
		gone   bool // the port http
		want   string
	}{
		{"nothing refused", []pass{{0, map[service.Port]portUse{http: {0, 0, 5}}}}, false, ""},
		{"all refused", []pass{{0, map[service.Port]portUse{http: {3, 0, 0}}}, {10, map[service.Port]portUse{http: {4, 0, 0}}}}, false, all + "7 packets to port http/TCP"},
		{"some served", []pass{{0, map[service.Port]portUse{http: {3, 0, 0}}}, {10, map[service.Port]portUse{http: {4, 0, 1}}}}, false, ""},
		{"served more than a minute ago", []pass{{0, map[service.Port]portUse{http: {3, 0, 9}}}, {60, map[service.Port]portUse{http: {4, 0, 0}}}}, false, all + "4 packets to port http/TCP"},
		{"refused more than a minute ago", []pass{{0, map[service.Port]portUse{http: {3, 0, 0}}}, {60, nil}}, false, ""},
		{"one of two ports", []pass{{0, map[service.Port]portUse{http: {3, 0, 0}, dns: {0, 0, 5}}}}, false, all + "3 packets to port http/TCP"},
		{"both ports", []pass{{0, map[service.Port]portUse{http: {3, 0, 0}, dns: {2, 0, 0}}}}, false, all + "2 packets to port UDP, 3 packets to port http/TCP"},
		{"dropped by policy Local", []pass{{0, map[service.Port]portUse{dns: {0, 6, 0}}}}, false, local + "6 packets to port UDP"},
		{"dropped, and served at another address", []pass{{0, map[service.Port]portUse{dns: {0, 6, 1}}}}, false, ""},
		{"dropped for another reason", []pass{{0, map[service.Port]portUse{http: {0, 6, 0}}}}, false, ""},
		{"a port that is gone", []pass{{0, map[service.Port]portUse{http: {3, 0, 0}}}, {10, nil}}, true, ""},
	} {
		var r refusals
		r.change(service.Delta{Plans: map[service.Ref]*service.Plan{web: {Frontends: []service.Frontend{{Port: dns, Decisions: [service.SourceClasses]service.Decision{service.FromOutside: {Verdict: service.Drop}}}}}}})
		r.note(time.Unix(-1, 0), map[service.Port]portUse{dns: {0, 9, 9}}, func(service.Port) bool { return true }) // before the policy
		for _, p := range c.passes {
			r.note(time.Unix(int64(p.at), 0), p.ports, func(port service.Port) bool { return !c.gone || port != http })
		}
		got := ""
		for _, one := range r.conditions() {
			got += string(one.Code) + ": " + one.Object + ": " + one.Message
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
