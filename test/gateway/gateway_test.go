// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"testing"
)

// TestGateway has all cases of routed devices, in one world with one agent.
func TestGateway(t *testing.T) {
	w := newWorld(t, "--gateway-devices=c0,s?,x0", fmt.Sprintf("--gateway-exclude-ports=%d", portExcluded))
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
