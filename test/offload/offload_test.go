// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"fmt"
	"testing"
)

// TestOffload has all cases of routed devices, in one world with one agent.
func TestOffload(t *testing.T) {
	w := newWorld(t, "--offload-devices=c0,s?,x0", fmt.Sprintf("--offload-exclude-ports=%d", portExcluded))
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
