// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"beeline.io/beeline/internal/inspect"
)

// TestSlipsAreNamed: a mistake in a stand-alone balancer's file that takes a VIP down is in the headline of
// status and has exit code 3; service show says why clients are refused; a valid file after an invalid one is
// logged (R5, R16).
func TestSlipsAreNamed(t *testing.T) {
	w := newWorld(t)
	text, err := os.ReadFile("../../examples/balancer/vips.yaml")
	w.must(err)
	good := string(text)
	w.agent.Manifests = filepath.Join(t.TempDir(), "vips.yaml")
	write := func(text string) { w.must(os.WriteFile(w.agent.Manifests, []byte(text), 0o644)) }
	write(good)
	w.must(w.agent.Start())
	w.wantWell()
	replace := func(old, with string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("the example has no %q", old)
		}
		return strings.ReplaceAll(good, old, with)
	}
	for _, slip := range []struct{ name, text, condition, show string }{
		{"a slice of no Service", replace("kubernetes.io/service-name: web", "kubernetes.io/service-name: wbe"),
			"EndpointSliceUnused: EndpointSlice default/", "no EndpointSlice of addressType IPv4 has the label"},
		{"a port of no slice", replace("- name: http\n", "- name: htpp\n"), "EndpointsMissing: Service default/web", "have no port of this name"},
		{"Endpoints", good + "---\napiVersion: v1\nkind: Endpoints\nmetadata: {name: web}\n", "SourceWarning: ", ""},
	} {
		write(slip.text)
		w.must(w.agent.WaitFor(slip.name, func(s *inspect.Status) bool {
			return strings.Contains(s.Conditions.Wrong().String(), slip.condition)
		}))
		if out, err := w.agent.CLI("status"); err == nil || strings.Contains(out, "All is well") {
			t.Errorf("%s: status (%v) says\n%s", slip.name, err, out)
		}
		show, err := w.agent.CLI("service", "show", "web")
		if err != nil || !strings.Contains(show, slip.show) {
			t.Errorf("%s: service show (%v) does not say %q:\n%s", slip.name, err, slip.show, show)
		}
	}
	write("no: [yaml")
	w.must(w.agent.WaitFor("an error", func(s *inspect.Status) bool { return s.Source.Errors > 0 }))
	write(good)
	w.must(w.agent.WaitFor("well", func(s *inspect.Status) bool { return len(s.Conditions.Wrong()) == 0 }))
	if log := w.agent.Log.(interface{ String() string }).String(); !strings.Contains(log, "level=INFO msg=\"manifests: no errors any more") {
		t.Error("the log does not mention the valid file")
	}
}
