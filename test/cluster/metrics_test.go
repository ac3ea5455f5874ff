// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/report/metrics"
	"beeline.io/beeline/test/lab"
)

// compareMonitoring compares what kube-proxy and Beeline serve at their port for metrics. Both have followed the
// cluster since their start.
func (c *Cluster) compareMonitoring(t *testing.T, proxy *KubeProxy, agent *lab.Host, await func()) {
	t.Helper()
	for n, pod := range []string{"a2", "b2"} { // each is local to one of the nodes
		local := corev1.ServiceInternalTrafficPolicyLocal
		s := NewService("local-"+pod, uint8(40+n), map[string]string{LabelPod: pod})
		s.Spec.Type, s.Spec.InternalTrafficPolicy, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, &local, corev1.ServiceExternalTrafficPolicyLocal
		_, err := c.CreateService(t.Context(), s)
		must(t, err)
		c.wantEndpoints(t, s.Name, map[string]string{pod: "ready " + c.Lab.Host(pod).Node.Name})
	}
	await()
	for _, host := range []*lab.Host{proxy.Host, agent} {
		for _, path := range []string{"/healthz", "/livez"} {
			c.get(t, host, 10256, path, "")
		}
	}
	theirs, ours := c.scrape(t, proxy.Host, "/metrics"), c.scrape(t, agent, "/metrics")
	maps.Copy(theirs, c.scrape(t, proxy.Host, "/metrics/slis"))
	wantKnown(t, theirs)
	for name, family := range theirs {
		if declared, ok := metrics.Declared()[name]; ok && len(family.Metric) > 0 {
			wantSameShape(t, family, declared)
		}
		// The client's metrics depend on its requests.
		if strings.HasPrefix(name, "kubeproxy_") && metrics.Declared()[name].Name != "" && ours[name] == nil {
			t.Errorf("kube-proxy serves %s, and Beeline does not", name)
		}
	}
	const noLocal = "kubeproxy_sync_proxy_rules_no_local_endpoints_total"
	if a, b := values(theirs[noLocal]), values(ours[noLocal]); !maps.Equal(a, b) || len(a) != 4 {
		t.Errorf("%s: kube-proxy has %v, Beeline %v", noLocal, a, b)
	}
	for _, kind := range []string{"Statusz", "Flagz"} {
		path := "/" + strings.ToLower(kind)
		c.wantSameObject(t, proxy.Host, agent, path, fmt.Sprintf("application/json;v=v1beta1;g=config.k8s.io;as=%s", kind))
		for _, accept := range []string{"", "text/plain", "*/*", "application/json", "application/xml", "application/json;v=v2;g=config.k8s.io;as=" + kind + ",*/*;q=0.1"} {
			a, b := c.get(t, proxy.Host, 10249, path, accept), c.get(t, agent, 10249, path, accept)
			if a.status != b.status || a.status == http.StatusOK && a.contentType != b.contentType {
				t.Errorf("%s, Accept %q: kube-proxy answers %d %s, Beeline %d %s", path, accept, a.status, a.contentType, b.status, b.contentType)
			}
		}
	}
}

// libraries are the beginnings of names of Go's library, which Beeline uses, too, and of other components in the
// program that kube-proxy is a part of here.
var libraries = []string{"go_", "process_", "aggregator_", "apiextensions_", "node_collector_"}

// wantKnown checks that each metric of kube-proxy is declared or listed as absent, and that both lists name nothing
// else of kube-proxy's.
func wantKnown(t *testing.T, scraped map[string]*dto.MetricFamily) {
	t.Helper()
	names := map[string]bool{}
	for _, name := range sourceNames(t) {
		names[name] = true
	}
	for name := range scraped {
		names[name] = true
	}
	used := map[string]bool{}
	for name := range names {
		absent := slices.IndexFunc(metrics.Absent, func(a struct{ Name, Why, Instead string }) bool {
			prefix, many := strings.CutSuffix(a.Name, "*")
			return name == a.Name || many && strings.HasPrefix(name, prefix)
		})
		_, declared := metrics.Declared()[name]
		switch library := slices.ContainsFunc(libraries, func(p string) bool { return strings.HasPrefix(name, p) }); {
		case absent >= 0 && declared:
			t.Errorf("%s is served, and listed as absent", name)
		case absent >= 0:
			used[metrics.Absent[absent].Name] = true
		case !declared && !library:
			t.Errorf("kube-proxy has %s: serve it (internal/report/metrics/families.go), or list it as absent (absent.go)", name)
		}
	}
	for _, a := range metrics.Absent {
		if !used[a.Name] {
			t.Errorf("kube-proxy has no %s, which is listed as absent", a.Name)
		}
	}
	for name := range metrics.Declared() {
		if strings.HasPrefix(name, "kubeproxy_") && !names[name] {
			t.Errorf("kube-proxy has no %s", name)
		}
	}
}

// sourceNames are the metrics that kube-proxy's source declares, for all its modes: not all are served in one.
func sourceNames(t *testing.T) (names []string) {
	t.Helper()
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "k8s.io/kubernetes/pkg/proxy/metrics").Output()
	must(t, err)
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "metrics.go"))
	must(t, err)
	for _, m := range regexp.MustCompile(`(?:Name:\s*"|NewDesc\(\s*"kubeproxy_)([a-z_]+)"`).FindAllStringSubmatch(string(text), -1) {
		names = append(names, "kubeproxy_"+m[1])
	}
	if len(names) < 20 {
		t.Fatalf("only %d metrics in kube-proxy's source: is its text another now?", len(names))
	}
	return names
}

// wantSameShape checks that a metric has kube-proxy's type, labels and buckets. That an agent serves it as it is
// declared is tested by test/monitoring.
func wantSameShape(t *testing.T, theirs *dto.MetricFamily, ours metrics.Family) {
	t.Helper()
	var labels []string
	for _, l := range theirs.Metric[0].Label {
		labels = append(labels, l.GetName())
	}
	var buckets []float64
	for _, b := range theirs.Metric[0].GetHistogram().GetBucket() {
		if bound := b.GetUpperBound(); !math.IsInf(bound, 1) {
			buckets = append(buckets, bound)
		}
	}
	describe := func(kind string, labels []string, buckets []float64) string {
		return fmt.Sprint(kind, " ", slices.Sorted(slices.Values(labels)), " ", buckets)
	}
	a := describe(strings.ToLower(theirs.GetType().String()), labels, buckets)
	if b := describe(string(ours.Kind), ours.Labels, ours.Buckets); a != b {
		t.Errorf("%s: kube-proxy has %s, Beeline %s", ours.Name, a, b)
	}
}

// values are those of gauges by their labels.
func values(f *dto.MetricFamily) map[string]float64 {
	all := map[string]float64{}
	for _, m := range f.GetMetric() {
		all[fmt.Sprint(m.Label)] = m.GetGauge().GetValue()
	}
	return all
}

// wantSameObject checks that two objects have the same fields, except those of a field with flags, and the same kind.
func (c *Cluster) wantSameObject(t *testing.T, proxy, agent *lab.Host, path, accept string) {
	t.Helper()
	var objects [2]map[string]any
	for i, host := range []*lab.Host{proxy, agent} {
		must(t, json.Unmarshal(c.get(t, host, 10249, path, accept).body, &objects[i]))
	}
	fields := func(o map[string]any) []string { return slices.Sorted(maps.Keys(o)) }
	if a, b := objects[0], objects[1]; !slices.Equal(fields(a), fields(b)) || a["kind"] != b["kind"] || a["apiVersion"] != b["apiVersion"] || a["emulationVersion"] != b["emulationVersion"] {
		t.Errorf("%s: kube-proxy answers %v, Beeline %v", path, a, b)
	}
}

func (c *Cluster) scrape(t *testing.T, host *lab.Host, path string) map[string]*dto.MetricFamily {
	t.Helper()
	answer := c.get(t, host, 10249, path, "")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(answer.body)))
	if err != nil || answer.status != http.StatusOK {
		t.Fatalf("%s of %s: %d, %v", path, host.Name, answer.status, err)
	}
	return families
}

type answer struct {
	status      int
	contentType string
	body        []byte
}

// get asks a node's own loopback address.
func (c *Cluster) get(t *testing.T, host *lab.Host, port int, path, accept string) answer {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return host.Dial(ctx, network, address)
	}}}
	request, err := http.NewRequestWithContext(within(t, patience), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
	must(t, err)
	if accept != "" {
		request.Header.Set("Accept", accept)
	}
	response, err := client.Do(request)
	must(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must(t, err)
	return answer{response.StatusCode, response.Header.Get("Content-Type"), body}
}
