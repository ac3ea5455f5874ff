// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"net"
	"testing"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/lab"
)

// applyDSR applies Service 1 with backends and annotations for DSR; "" is none.
func (w *world) applyDSR(kind, hybrid string, pods ...string) {
	w.t.Helper()
	s, all := w.everywhere("web", 1, pods...)
	s.Annotations = map[string]string{}
	if kind != "" {
		s.Annotations[service.AnnotationDSR] = kind
	}
	if hybrid != "" {
		s.Annotations[service.AnnotationDSRHybrid] = hybrid
	}
	w.apply("web", objects(s, all)...)
}

// wantKinds checks that new flows of TCP and of UDP reach remote backends by a kind of DSR each; off is SNAT.
func (w *world) wantKinds(tcp, udp string, pods ...string) {
	w.t.Helper()
	w.forgetFlows() // a client may reuse the port of an older flow
	for family := range 2 {
		to := w.address("ExternalIP", 1, family)
		for network, kind := range map[string]string{"tcp": tcp, "udp": udp} {
			want := w.clientOf(family)
			if kind == "off" {
				want = addresses(w.Host("node-a"), 0)[family].Addr()
			}
			seen := w.sightings("node-a")
			for _, answer := range w.wantServed(network, to, pods...) {
				if answer.Peer.Addr() != want {
					w.t.Errorf("%s to %s: %s sees %s, want %s (%s)", network, to, answer.Pod, answer.Peer, want, kind)
				}
			}
			packets := 0
			for _, s := range seen() {
				if s.protocol != network || s.kind == "" {
					continue
				}
				packets++
				if s.kind != kind {
					w.t.Errorf("%s to %s left the balancer by %s, want %s:\n%s", network, to, s.kind, kind, s)
				}
			}
			if (packets > 0) != (kind != "off") {
				w.t.Errorf("%s to %s: %d packets left the balancer encapsulated, want %s", network, to, packets, kind)
			}
		}
	}
}

// X2: hybrid: UDP by SNAT and TCP by DSR; a Service's annotations override the flags, in both directions.
func TestDSRHybridAndAnnotations(t *testing.T) {
	wantAnnotated(t, "tc", []annotated{
		{"", "", "geneve", "off"},
		{"", "false", "geneve", "geneve"},
		{"ipip", "", "ipip", "off"},
		{"opt", "false", "opt", "opt"},
		{"off", "", "off", "off"},
		{"off", "true", "off", "off"},
	}, "geneve", "--dsr-hybrid")
}

// X2: annotations work without the flag; the backends' nodes accept the packets.
func TestDSRByAnnotationAlone(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		wantAnnotated(t, mode, []annotated{
			{"", "", "off", "off"},
			{"", "true", "off", "off"},
			{"ipip", "", "ipip", "ipip"},
			{"geneve", "true", "geneve", "off"},
		}, "off")
	})
}

// annotated has a Service's annotations, and the resulting kinds of DSR of TCP and UDP.
type annotated struct{ dsr, hybrid, tcp, udp string }

// wantAnnotated checks each of these in turn, with a balancer that has --dsr and more flags.
func wantAnnotated(t *testing.T, mode string, all []annotated, dsr string, flags ...string) {
	t.Helper()
	w := startDSR(t, dsr, mode, flags...)
	for _, a := range all {
		w.applyDSR(a.dsr, a.hybrid, "b1", "c1")
		w.wantKinds(a.tcp, a.udp, "b1", "c1")
	}
	w.wantNoDropsAnywhere()
}

// X2, R30: connections and UDP flows survive each change of the annotation, and their backends see the same as
// before.
func TestDSRChangesUnderOpenFlows(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := startDSR(t, "off", mode)
		type flow struct {
			net.Conn
			kind  string
			first lab.Answer
		}
		var flows []*flow
		ask := func(f *flow) lab.Answer {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			answer, err := lab.Ask(ctx, f, "hello")
			if err != nil {
				t.Fatalf("a flow of %s from %s: %v", f.kind, f.LocalAddr(), err)
			}
			return answer
		}
		for _, kind := range []string{"off", "ipip", "geneve", "opt", "off"} {
			w.applyDSR(kind, "", "b1", "c1")
			for _, f := range flows {
				if answer := ask(f); answer != f.first {
					t.Errorf("with %s, a flow of %s is answered %+v, before %+v", kind, f.kind, answer, f.first)
				}
			}
			for n := range 8 {
				f := &flow{Conn: w.open([]string{"tcp", "udp"}[n/4], w.address("ExternalIP", 1, n%2)), kind: kind}
				f.first = ask(f)
				flows = append(flows, f)
			}
		}
		for _, f := range flows {
			if answer := ask(f); answer != f.first {
				t.Errorf("in the end, a flow of %s is answered %+v, before %+v", f.kind, answer, f.first)
			}
		}
		w.wantNoDropsAnywhere()
	})
}
