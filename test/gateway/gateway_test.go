// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"testing"
)

// TestGateway has all cases of routed devices, in one world with one agent.
func TestGateway(t *testing.T) {
	w := startWorld(t, "c0,s0,s1,x0", fmt.Sprintf("--gateway-exclude-ports=%d", portExcluded))
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
