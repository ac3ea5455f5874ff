// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/report/metrics"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

var beeline string

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(node.Run(m, &beeline))
}

// patience bounds all waiting.
const patience = 2 * time.Minute

// A Prometheus with the rules of deploy/ scrapes two agents: that of node-a serves clients outside, that of node-b
// waits for an API server that does not answer. Every query of the dashboard has a result, and the agents serve
// what metrics.md says.
func TestDashboard(t *testing.T) {
	l := lab.New(t)
	must(t, l.StartServers())
	folder := &node.Folder{Path: t.TempDir()}
	must(t, folder.Put("cluster", node.Cluster(l)...))
	serving := &node.Agent{Host: l.Host("node-a"), Program: beeline, Manifests: folder.Path, MaxFlows: 16384, Flags: []string{"--edge-stats-per-backend", "--socket-stats-per-backend", "--pod-devices=auto", "--offload-devices=eth0", "--offload-provider=cache",
		"--mesh-cgroups=" + l.Host("a3").Cgroup + "/later", "--mesh-hoststack=on"}}
	waiting := &node.Agent{Host: l.Host("node-b"), Program: beeline, Kubeconfig: kubeconfig(t), Flags: []string{"--metrics-bind-address=0.0.0.0:10249"}}
	start(t, serving)
	must(t, serving.WaitReady())
	start(t, waiting)
	must(t, folder.Put("web", web(l)...))
	must(t, folder.Await(serving))
	p := startPrometheus(t, l)
	go traffic(t.Context(), l)
	p.awaitResults(t, queries(t))
	p.awaitRules(t)
	awaitDeclared(t, l.Host("node-a"), l.Host("node-b"))
}

// web is a Service for clients outside with backends on both nodes, whose slices have been triggered just now.
func web(l *lab.Lab) []runtime.Object {
	s, slices := node.Service("web", 1), node.Slices("web", l.Host("a1"), l.Host("b1"))
	s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080
	s.Annotations = map[string]string{service.AnnotationHealthCheck: "tcp"}
	all := []runtime.Object{s}
	for _, slice := range slices {
		slice.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().UTC().Format(time.RFC3339Nano)}
		all = append(all, slice)
	}
	return all
}

// traffic sends requests of a client outside and of a pod until ctx ends.
func traffic(ctx context.Context, l *lab.Lab) {
	for ctx.Err() == nil {
		// The metrics show what failed.
		l.Host("client").Request(ctx, "tcp", net.JoinHostPort(l.Host("node-a").Addr4.String(), "30080"), "hello")
		l.Host("a2").Request(ctx, "tcp", net.JoinHostPort(node.ClusterIPs(1)[0], "80"), "hello")
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func start(t *testing.T, a *node.Agent) {
	t.Helper()
	log := &node.Log{}
	a.Log = log
	t.Cleanup(func() {
		if err := a.Kill(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the agent of %s printed:\n%s", a.Host.Name, log)
		}
	})
	must(t, a.StartOnly())
}

// kubeconfig names a server that refuses connections.
func kubeconfig(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(path, []byte(`apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
users: [{name: none, user: {}}]
current-context: none
`), 0o600))
	return path
}

// server is a Prometheus on node-a.
type server struct{ host *lab.Host }

func startPrometheus(t *testing.T, l *lab.Lab) server {
	t.Helper()
	dir, host := t.TempDir(), l.Host("node-a")
	rules, err := filepath.Abs(filepath.Join(prometheus, "alerts.yaml"))
	must(t, err)
	config := fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs:
- job_name: beeline
  static_configs:
  - {targets: ["127.0.0.1:10249"], labels: {instance: node-a}}
  - {targets: ["%s:10249"], labels: {instance: node-b}}
`, rules, l.Host("node-b").Addr4)
	must(t, os.WriteFile(filepath.Join(dir, "prometheus.yaml"), []byte(config), 0o644))
	ctx, cancel := context.WithCancel(context.Background())
	log := &node.Log{}
	cmd := host.Command(ctx, program(t, "prometheus"), "--config.file="+filepath.Join(dir, "prometheus.yaml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:9090")
	cmd.Stdout, cmd.Stderr = log, log
	must(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("Prometheus printed:\n%s", log)
		}
	})
	return server{host}
}

// queries are those of the dashboard, by the titles of their panels.
func queries(t *testing.T) map[string]string {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ RefID, Expr string }
		}
	}
	text, err := os.ReadFile("../../deploy/grafana/beeline.json")
	must(t, err)
	must(t, json.Unmarshal(text, &dashboard))
	all := map[string]string{}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			all[p.Title+" "+target.RefID] = strings.NewReplacer("$__rate_interval", "15s", "$instance", ".*").Replace(target.Expr)
		}
	}
	if len(all) < 20 {
		t.Fatalf("the dashboard has only %d queries", len(all))
	}
	return all
}

// awaitResults waits until each query has a result.
func (s server) awaitResults(t *testing.T, queries map[string]string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Second) {
		var problem string
		for title, query := range queries {
			var answer struct {
				Data struct{ Result []any }
			}
			if err := s.get("/api/v1/query?query="+url.QueryEscape(query), &answer); err != nil {
				problem = fmt.Sprintf("panel %s: %s: %v", title, query, err)
			} else if len(answer.Data.Result) > 0 {
				delete(queries, title)
			} else {
				problem = fmt.Sprintf("panel %s: %s has no result", title, query)
			}
		}
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s, and so have %d others", problem, len(queries)-1)
		}
	}
}

// awaitRules waits until all rules were evaluated without an error, and the agent that waits has an alert.
func (s server) awaitRules(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Second) {
		var answer struct {
			Data struct {
				Groups []struct {
					Rules []struct {
						Name, Health string
						Alerts       []struct{ Labels map[string]string }
					}
				}
			}
		}
		problem := ""
		if err := s.get("/api/v1/rules", &answer); err != nil {
			problem = err.Error()
		}
		waits := false
		for _, g := range answer.Data.Groups {
			for _, r := range g.Rules {
				if r.Health != "ok" {
					problem = fmt.Sprintf("rule %s is %s", r.Name, r.Health)
				}
				for _, a := range r.Alerts {
					waits = waits || a.Labels["code"] == "NotSynced" && a.Labels["instance"] == "node-b"
				}
			}
		}
		if problem == "" && waits {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s; an alert for the agent without an API server: %t", problem, waits)
		}
	}
}

func (s server) get(path string, into any) error {
	body, err := get(s.host, "127.0.0.1:9090", path)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}

func get(host *lab.Host, address, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: host.Dial}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return body, err
}

func scrape(t *testing.T, host *lab.Host) map[string]*dto.MetricFamily {
	t.Helper()
	body, err := get(host, "127.0.0.1:10249", "/metrics")
	must(t, err)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(body)))
	must(t, err)
	return families
}

// rare are declared metrics that these agents have no reason to serve.
var rare = []string{"beeline_metrics_dropped_series", "promhttp_metric_handler_errors_total", "rest_client_request_retries_total", "rest_client_response_size_bytes",
	"rest_client_request_size_bytes", "rest_client_request_duration_seconds", "rest_client_rate_limiter_duration_seconds",
	"kubeproxy_proxy_healthz_total", "kubeproxy_proxy_livez_total"}

// awaitDeclared waits until agents serve all that metrics.md has: some families take a GC pass over flows.
func awaitDeclared(t *testing.T, hosts ...*lab.Host) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Second) {
		missing := wantDeclared(t, hosts...)
		if len(missing) == 0 || t.Failed() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v are declared, and no agent serves them", missing)
		}
	}
}

// wantDeclared compares what agents serve with the table of metrics.md: names, types and labels. It returns what none
// serves.
func wantDeclared(t *testing.T, hosts ...*lab.Host) (missing []string) {
	t.Helper()
	declared, served := metrics.Declared(), map[string]bool{}
	for _, host := range hosts {
		for name, family := range scrape(t, host) {
			served[name] = true
			if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
				continue
			}
			var labels []string
			for _, l := range family.Metric[0].Label {
				labels = append(labels, l.GetName())
			}
			d, ok := declared[name]
			want := slices.Sorted(slices.Values(d.Labels))
			if slices.Sort(labels); !ok || !slices.Equal(labels, want) || strings.ToLower(family.GetType().String()) != string(d.Kind) {
				t.Errorf("%s is a %s with labels %v, and declared as %s with %v (internal/report/metrics/families.go)", name, family.GetType(), labels, d.Kind, want)
			}
		}
	}
	for name := range declared {
		if !served[name] && !slices.Contains(rare, name) {
			missing = append(missing, name)
		}
	}
	return missing
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
