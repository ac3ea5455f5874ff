// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"beeline.io/beeline/internal/api"
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
	head, _, _ := strings.Cut(good, "---\n")
	for _, slip := range []struct{ name, text, condition, show string }{
		{"a slice of no Service", replace("kubernetes.io/service-name: web", "kubernetes.io/service-name: wbe"),
			"EndpointSliceUnused: EndpointSlice default/", "no EndpointSlice of addressType IPv4 has the label"},
		{"a port of no slice", replace("- name: http\n", "- name: htpp\n"), "EndpointsMissing: Service default/web", "have no port of this name"},
		{"a port of no slice, in one of two", strings.Replace(good, "- name: http\n    port: 8081\n", "- name: htpp\n    port: 8081\n", 1), "EndpointSliceUnused: EndpointSlice default/web-", ""},
		{"a misspelt weight", replace("beeline.io/weight: \"3\"", "beeline.io/weigth: \"0\""), "AnnotationUnknown: EndpointSlice default/web-1: annotation beeline.io/weigth: there is no such annotation, did you mean", ""},
		{"a misspelt health check", replace("beeline.io/health-check: ", "beeline.io/healthcheck: "), "AnnotationInvalid: Service default/web: " + w.agent.Manifests + ":17: annotation beeline.io/healthcheck: there is no such annotation, did you mean", ""},
		{"a weight at a Service", replace("beeline.io/health-check-rise: \"2\"", "beeline.io/weight: \"0\""), "AnnotationUnknown: Service default/web: annotation beeline.io/weight: objects of kind Service do not have it", ""},
		{"no endpoints", head + "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{name: http, port: 8081}]\nendpoints: []\n",
			"EndpointsMissing: Service default/web", "its EndpointSlices have no endpoints"},
		{"all of weight 0", strings.ReplaceAll(replace("weight: \"3\"", "weight: \"0\""), "weight: \"1\"", "weight: \"0\""), "EndpointsUnusable: Service default/web", "3 of weight 0"},
		{"external IPs without a cluster IP", replace("  clusterIP: 203.0.113.10\n", ""), "SourceError: Service default/web: " + w.agent.Manifests + ":27: spec.clusterIP: missing", ""},
		{"external IPs of a headless Service", replace("  clusterIP: 203.0.113.10\n", "  clusterIP: None\n"), "spec.clusterIP: None: without one the Service is not served", ""},
		{"a list of cluster IPs alone", replace("  clusterIP: 203.0.113.10\n", "  clusterIPs: [203.0.113.10]\n"), "spec.clusterIP: missing; write \"203.0.113.10\"", ""},
		{"https behind a check by http", strings.ReplaceAll(replace("      port: 80\n---", "      port: 80\n    - name: https\n      port: 443\n---"), "  - name: http\n    port: 8081\n", "  - name: http\n    port: 8081\n  - name: https\n    port: 8443\n"),
			"HealthCheckUnlikely: Service default/web: port 443 (https/TCP) is checked by http", "IPv4 port https/TCP: no endpoint is usable: 1 down by the health check"},
		{"Endpoints", good + "---\napiVersion: v1\nkind: Endpoints\nmetadata: {name: web}\n", "SourceWarning: ", ""},
	} {
		write(slip.text)
		w.must(w.agent.WaitFor(slip.name, func(s *api.Status) bool {
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
	w.must(w.agent.WaitFor("an error", func(s *api.Status) bool { return s.Source.Errors > 0 }))
	write(good)
	w.must(w.agent.WaitFor("well", func(s *api.Status) bool { return len(s.Conditions.Wrong()) == 0 }))
	if log := w.agent.Log.(interface{ String() string }).String(); !strings.Contains(log, "level=INFO msg=\"manifests: no errors any more") {
		t.Error("the log does not mention the valid file")
	}
}
