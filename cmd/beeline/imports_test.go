// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"strings"
	"testing"
)

// The agent's binary contains no package of the lab, the tests or the benchmark.
func TestImports(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil || !strings.Contains(string(out), "beeline.io/beeline/internal/bpf\n") {
		t.Fatalf("go list -deps: %v, and it printed %q", err, out)
	}
	for _, folder := range []string{"test/", "bench", "cmd/beeline-lab"} {
		if strings.Contains(string(out), "beeline.io/beeline/"+folder) {
			t.Errorf("cmd/beeline imports packages of %s", folder)
		}
	}
}
