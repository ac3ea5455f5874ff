// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/test/node"
)

// redirect are the rules of a sidecar by netfilter, as Istio's: connections of the proxy's user are left alone.
const redirect = `table ip sidecar {
	chain output {
		type nat hook output priority -100; policy accept;
		meta skuid 1337 return
		ip daddr 127.0.0.0/8 return
		meta l4proto tcp redirect to :15001
	}
}`

// benchServer answers with 1 KiB.
const benchServer = `
daemon off;
pid FOLDER/pid;
error_log stderr;
master_process off;
events {}
http {
	access_log off;
	keepalive_requests 100000000;
	server { listen 8090; location / { return 200 "TEXT"; } }
}
`

// BenchmarkSidecars sends HTTP requests through a proxy by 64 connections, with three ways to lead them there, in turn.
// Client and proxy are in one pod, the server is on a host outside the cluster.
//
//	go test ./test/mesh -run - -bench Sidecars -benchtime 5x
func BenchmarkSidecars(b *testing.B) {
	for _, p := range []proxy{envoy, haproxy} {
		b.Run(p.name, func(b *testing.B) { benchmarkProxy(b, p) })
	}
}

func benchmarkProxy(b *testing.B, p proxy) {
	w := newWorld(b, "--mesh-sockmap")
	w.startAgent()
	w.startHookOnly()
	w.run("b2", "nft", redirect)
	w.serveBench()
	ways := []struct{ name, pod string }{{"netfilter", "b2"}, {"hook", "b1"}, {"hook+sockmap", "a1"}}
	for _, way := range ways {
		w.startProxy(p, way.pod)
	}
	total := map[string]float64{}
	p90 := map[string]float64{}
	for b.Loop() {
		for _, way := range ways {
			rate, latency := w.wrk(way.pod)
			total[way.name] += rate
			p90[way.name] += latency.Seconds() * 1e6
		}
	}
	for _, way := range ways {
		b.ReportMetric(total[way.name]/float64(b.N), way.name+"-requests/s")
		b.ReportMetric(p90[way.name]/float64(b.N), way.name+"-p90-us")
	}
}

// startHookOnly starts an agent on node-b, without the shortcut past TCP, for b1.
func (w *world) startHookOnly() {
	w.t.Helper()
	other := *w
	other.agent = &node.Agent{Host: w.Host("node-b"), Program: program, Manifests: w.folder.Path, MaxFlows: 16384, Log: &node.Log{},
		Flags: []string{"--edge-mode=off", "--mesh-cgroups=" + w.Host("b1").Cgroup}}
	w.t.Cleanup(func() { other.agent.Kill() })
	other.startAgent()
}

// serveBench starts the server.
func (w *world) serveBench() {
	w.t.Helper()
	folder := w.folderOf(0)
	config := filepath.Join(folder, "nginx.conf")
	text := strings.NewReplacer("FOLDER", folder, "TEXT", strings.Repeat("x", 1024)).Replace(benchServer)
	w.must(os.WriteFile(config, []byte(text), 0o644))
	ctx, cancel := context.WithCancel(context.Background())
	cmd := w.Host("client").Command(ctx, "nginx", "-e", "stderr", "-p", folder, "-c", config)
	log := &node.Log{}
	cmd.Stdout, cmd.Stderr = log, log
	w.must(cmd.Start())
	w.t.Cleanup(func() { cancel(); cmd.Wait() })
	w.eventually("nginx listens", func() bool { return w.listens(w.Host("client"), 8090) })
}

var (
	wrkRate = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)
	wrkP90  = regexp.MustCompile(`90%\s+([0-9.]+[a-z]+)`)
)

// wrk returns requests per second and the 90th percentile of the latency.
func (w *world) wrk(pod string) (rate float64, p90 time.Duration) {
	w.t.Helper()
	to := netip.AddrPortFrom(w.Host("client").Addr4, 8090)
	out := w.run(pod, "wrk", "-t", "1", "-c", "64", "-d", "3s", "--latency", fmt.Sprintf("http://%s/", to))
	r, l := wrkRate.FindStringSubmatch(out), wrkP90.FindStringSubmatch(out)
	if r == nil || l == nil || strings.Contains(out, "Non-2xx") {
		w.t.Fatalf("wrk printed:\n%s", out)
	}
	rate, err := strconv.ParseFloat(r[1], 64)
	w.must(err)
	p90, err = time.ParseDuration(l[1])
	w.must(err)
	return rate, p90
}

// run runs a command on a host and returns what it prints.
func (w *world) run(host string, argv ...string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := w.Host(host).Command(ctx, argv...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: %s: %v: %s", host, strings.Join(argv, " "), err, out)
	}
	return string(out)
}
