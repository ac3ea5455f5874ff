// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/needs"
	"beeline.io/beeline/test/node"
)

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(m.Run())
}

// The demo works twice in a row over the lab of the first run, and leaves nothing with --down.
func TestDemo(t *testing.T) {
	needs.Root(t)
	o := options{program: node.Program(t), labProgram: node.LabProgram(t), manifests: "../../examples", name: fmt.Sprintf("demo-test-%d", os.Getpid())}
	t.Cleanup(func() {
		if err := lab.Down(o.name); err != nil {
			t.Error(err)
		}
	})
	for _, down := range []bool{false, true} {
		var out bytes.Buffer
		o.down = down
		if err := run(t.Context(), o, &out); err != nil {
			t.Fatalf("%v; it printed:\n%s", err, &out)
		}
		if !strings.Contains(out.String(), "none failed") {
			t.Errorf("no summary in:\n%s", &out)
		}
		if _, err := lab.Open(o.name); (err != nil) != down {
			t.Errorf("after a run with down=%v, the lab: %v", down, err)
		}
	}
}

func TestWithoutEndpoints(t *testing.T) {
	const text = `# kept
kind: Service
metadata:
  name: web
---
kind: EndpointSlice
metadata:
  labels:
    kubernetes.io/service-name: web
endpoints:
  - addresses: [10.10.1.12] # stays
  - addresses: [10.10.2.11]
---
kind: EndpointSlice
metadata:
  labels:
    kubernetes.io/service-name: sticky
endpoints:
  - addresses: [10.10.2.11]
`
	edited, removed, err := withoutEndpoints([]byte(text), "web", "10.10.2.11", "fd00:10:2::11")
	if err != nil || removed != 1 {
		t.Fatalf("removed %d endpoints (%v), want 1 of the Service's own", removed, err)
	}
	for _, want := range []string{"# kept", "# stays"} {
		if !strings.Contains(string(edited), want) {
			t.Errorf("%q is missing in:\n%s", want, edited)
		}
	}
	if n := strings.Count(string(edited), "10.10.2.11"); n != 1 {
		t.Errorf("the address occurs %d times, want once, in the slice of the other Service:\n%s", n, edited)
	}
}
