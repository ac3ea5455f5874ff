// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// nginxConfig proxies /name to the name in the zone, on one port per family of the name server. A variable
// makes nginx resolve the name for each request, from sockets that stay connected.
const nginxConfig = `
daemon off;
master_process off;
pid %[1]s/pid;
error_log stderr;
events {}
http {
	access_log off;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	resolver_timeout 25s;
	server {
		listen 127.0.0.1:8004;
		resolver %[2]s;
		location ~ ^/([^/]+)(/.*)$ { proxy_pass http://$1.%[4]s:$arg_port$2; }
	}
	server {
		listen 127.0.0.1:8006;
		resolver [%[3]s];
		location ~ ^/([^/]+)(/.*)$ { proxy_pass http://$1.%[4]s:$arg_port$2; }
	}
}
`

// startNginx starts it on a host and returns a client there.
func (w *dnsWorld) startNginx(t *testing.T, on *lab.Host) *http.Client {
	t.Helper()
	folder := t.TempDir()
	config := fmt.Sprintf(nginxConfig, folder, ipv4.clusterIP(nameserver).Addr(), ipv6.clusterIP(nameserver).Addr(), zone)
	w.must(os.WriteFile(filepath.Join(folder, "nginx.conf"), []byte(config), 0o644))
	log := &node.Log{}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := on.Command(ctx, "nginx", "-e", "stderr", "-p", folder, "-c", filepath.Join(folder, "nginx.conf"))
	cmd.Stdout, cmd.Stderr = log, log
	w.must(cmd.Start())
	t.Cleanup(func() {
		cancel()
		cmd.Wait()
		if t.Failed() {
			t.Logf("nginx on %s printed:\n%s", on.Name, log)
		}
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return on.Dial(ctx, network, address)
		}}}
	w.eventually("nginx listens on "+on.Name, func() bool {
		conn, err := on.Dial(ctx, "tcp", "127.0.0.1:8006")
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return client
}

// proxied has nginx proxy a request for a name; port is nginx's, and `to` the name's.
func proxied(client *http.Client, port int, name string, to int) (lab.Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return lab.Get(ctx, client, fmt.Sprintf("http://127.0.0.1:%d/%s/hello?port=%d", port, name, to))
}

// S4: nginx resolves names and connects to them through Services. R29: after the name server's pod is gone,
// nginx reaches another one.
func TestNginxResolver(t *testing.T) {
	wantProgram(t, "nginx", "nginx")
	w := startDNSWorld(t, "a2 b1")
	all := w.hosts("a1 node-a")
	clients := make([]*http.Client, len(all))
	for i, on := range all {
		clients[i] = w.startNginx(t, on)
		for _, port := range []int{8004, 8006} {
			for n := range 10 {
				answer, err := proxied(clients[i], port, fmt.Sprintf("web-%d", n), 80)
				if err != nil || answer.Pod != "b2" || answer.Payload != "/hello" {
					t.Fatalf("nginx on %s, port %d: %+v (%v), want an answer from b2", on.Name, port, answer, err)
				}
			}
			answer, err := proxied(clients[i], port, "who", lab.PortHTTP)
			if err != nil || !slices.Contains(w.servers, w.Host(answer.Pod)) {
				t.Errorf("nginx on %s, port %d: %+v (%v), want an answer from the name server's pod", on.Name, port, answer, err)
			}
		}
	}
	w.applyDNS("dns", nameserver, "a2")
	w.must(w.Host("b1").StopServer())
	for i, on := range all {
		for _, port := range []int{8004, 8006} {
			for n := 10; n < 15; n++ {
				answer, err := proxied(clients[i], port, fmt.Sprintf("web-%d", n), 80)
				if err != nil || answer.Pod != "b2" {
					t.Errorf("b1 is gone; nginx on %s, port %d: %+v (%v), want an answer from b2", on.Name, port, answer, err)
				}
			}
		}
	}
}
