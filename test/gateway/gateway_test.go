// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"testing"
)

// TestGateway has all cases of routed devices, in one world with one agent.
func TestGateway(t *testing.T) {
	w := newWorld(t, "--gateway-devices=c0,s0,s1,x0")
	w.start()
	for _, group := range []struct {
		name  string
		cases func(*world)
	}{
		{"transfers", transfers},
		{"stays on the stack", staysOnStack},
		{"changes", changes},
		{"timeouts", timeouts},
		{"agent", agentEnds},
	} {
		t.Run(group.name, func(t *testing.T) {
			w := w.in(t)
			group.cases(w)
			w.wantNoneInvalid()
		})
	}
}
