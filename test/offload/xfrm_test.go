// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"fmt"
	"strings"
	"testing"
)

// xfrm runs `ip xfrm` on the router.
func (w *world) xfrm(arguments string) {
	w.t.Helper()
	w.run("router", append([]string{"ip", "xfrm"}, strings.Fields(arguments)...)...)
}

// xfrmPolicies is about flows that are short-cut while an XFRM policy comes: those that it blocks stop, and continue
// when it is gone; those that it transforms take the stack; others stay short-cut. A policy for forwarded packets sees
// them before NAT, one for output after NAT. The default action concerns all.
func (w *world) xfrmPolicies() {
	w.t.Helper()
	for _, of := range families {
		w.t.Run(fmt.Sprint(of), func(t *testing.T) {
			w := w.in(t)
			blocked, transformed, other := w.open("udp", dnat, of), w.open("udp", snat, of), w.open("udp", dnat, 1-of)
			w.settle(blocked, transformed, other)
			block := fmt.Sprintf("dir fwd src %s dst %s proto udp dport %d", of.prefix(networkClient), of.prefix(networkPublic), blocked.port+portShift)
			w.xfrm("policy add " + block + " action block")
			// The source at output is the router's own.
			w.xfrm(fmt.Sprintf("policy add dir out src %s dst %s proto udp dport %d tmpl proto esp mode transport level use", of.prefix(networkServer), of.prefix(networkTargets), transformed.port))
			blocked.stops()
			transformed.wantStack()
			w.settle(other)
			w.wantRefused("it would bypass XFRM policy dir out", transformed)
			w.xfrm("policy delete " + block)
			blocked.continues(10 * soon * load)
			w.settle(blocked)

			w.xfrm("policy flush")
			w.settle(transformed)
			w.xfrm("policy setdefault fwd block")
			blocked.stops()
			other.stops()
			w.xfrm("policy setdefault fwd accept")
			for _, f := range []*flow{blocked, transformed, other} {
				f.continues(10 * soon * load)
			}
			w.settle(blocked, transformed, other)
		})
	}
}

// wantRefused waits until the agent says that a flow stays on the stack for a reason.
func (w *world) wantRefused(reason string, f *flow) {
	w.t.Helper()
	if *stack {
		return
	}
	w.eventually(fmt.Sprintf("%s is refused: %s", f, reason), func() bool {
		w.must(f.exchange(2 * threshold))
		s, err := w.agent.Status()
		w.must(err)
		for why := range s.Offload.RefusedDirections {
			if strings.HasPrefix(why, reason) {
				return true
			}
		}
		return false
	})
}
