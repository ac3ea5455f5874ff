// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source"
	"beeline.io/beeline/internal/report/metrics"
)

// R26: the agent connects to the API server with the dialer that records its addresses.
func TestSourceNotesTheAPIServer(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: x, clusters: [{name: c, cluster: {server: "http://%s"}}],
  users: [{name: u, user: {token: t}}], contexts: [{name: x, context: {cluster: c, user: u}}]}`, server.Addr())
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var known apiServer
	objects, _, err := newSource(Config{Kubeconfig: kubeconfig, NodeName: "n"}, "test", &known, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- objects.Run(ctx, make(chan source.Event)) }()
	defer func() {
		cancel()
		<-ended
	}()
	want := []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	for end := time.Now().Add(time.Minute); !slices.Equal(known.addresses(), want); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("known addresses %v, want %v", known.addresses(), want)
		}
	}
}

// R26: with --refuse-foreign-external-ips, an external IP at which the agent reaches the API server is ignored
// from the next change on; other external IPs are served.
func TestAPIServerIsNoExternalIP(t *testing.T) {
	at, other := netip.MustParseAddr("203.0.113.6"), netip.MustParseAddr("203.0.113.7")
	web := &service.Service{
		Namespace: "default", Name: "web", Type: "ClusterIP", ClusterIPs: []string{"10.0.0.1"}, IPFamilies: []service.Family{service.IPv4},
		ExternalIPs: []netip.Addr{at, other}, Ports: []service.ServicePort{{Protocol: service.TCP, Port: 443}},
	}
	ref := service.Ref{Kind: service.KindService, Namespace: web.Namespace, Name: web.Name}
	for _, refuse := range []bool{false, true} {
		a := &Agent{config: Config{Service: service.Config{NodeName: "n", RefuseForeignExternalIPs: refuse}}, log: slog.New(slog.NewTextHandler(io.Discard, nil)),
			metrics: metrics.New(metrics.Options{Log: slog.New(slog.DiscardHandler)})}
		a.cluster = service.NewCluster(a.config.Service)
		for step, want := range []struct {
			noted   bool
			changes []service.Change
			served  bool // at the API server's address
		}{
			{changes: []service.Change{{Ref: ref, Object: web}}, served: true},
			{noted: true, served: !refuse},
		} {
			if want.noted {
				a.server.note(net.TCPAddrFromAddrPort(netip.AddrPortFrom(at, 6443)))
			}
			if err := a.take(source.Event{Changes: want.changes}); err != nil {
				t.Fatal(err)
			}
			served := map[netip.Addr]bool{}
			var problems string
			for owner, plan := range a.cluster.Owners() {
				if owner == ref {
					problems = plan.Problems.String()
					for _, f := range plan.Frontends {
						served[f.Key.Addr] = true
					}
				}
			}
			said := strings.Contains(problems, "203.0.113.6 is ignored, because it is an address of the API server")
			if served[at] != want.served || !served[other] || said == want.served {
				t.Errorf("refused: %v, step %d: served %v, problems %q", refuse, step, served, problems)
			}
		}
	}
}
