// SPDX-License-Identifier: Apache-2.0

// Package web starts nginx as a web server or a proxy, and wrk as its client.
package web

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/test/lab"
)

// ConfigCommon is the common configuration of all nginx: one process with one worker, no log, connections that
// stay open. It writes to the folder.
const ConfigCommon = `
daemon off;
master_process off;
worker_processes 1;
pid %[1]s/pid;
error_log stderr;
events { worker_connections 1024; }
`

// ConfigHTTP is the common part of its section http.
const ConfigHTTP = `
	access_log off;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	keepalive_requests 1000000000;
	keepalive_timeout 300s;
`

// webConfig is for a web server that answers 1 KiB, and at /who with its name and the client's address.
const webConfig = ConfigCommon + `
http {` + ConfigHTTP + `
	server {
		listen %[2]s backlog=1024;
		location / { return 200 "%[4]s"; }
		location = /who { return 200 "%[3]s $remote_addr"; }
	}
}
`

// Debian has the module in a package of its own.
const StreamModule = "/usr/lib/nginx/modules/ngx_stream_module.so"

// balancerConfig is for nginx as a balancer, on one port for HTTP and on another for TCP streams.
const balancerConfig = "load_module " + StreamModule + ";\n" + ConfigCommon + `
http {` + ConfigHTTP + `
	upstream web {
		%[4]s
		keepalive 128;
		keepalive_requests 1000000000;
	}
	server {
		listen %[2]d backlog=1024;
		location / {
			proxy_pass http://web;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
		}
	}
}
stream {
	upstream web {
		%[4]s
	}
	server {
		listen %[3]d backlog=1024;
		proxy_pass web;
	}
}
`

// AnswerLength is the length of the replies' bodies.
const AnswerLength = 1024

// Nginx is a running nginx.
type Nginx struct {
	cmd    *lab.Cmd
	cancel context.CancelFunc
}

// StartWeb starts a web server in a pod.
func StartWeb(ctx context.Context, pod *lab.Host) (*Nginx, error) {
	at := netip.AddrPortFrom(pod.Addr4, harness.ServerPort)
	return StartNginx(ctx, pod, fmt.Sprintf(webConfig, NginxFolder(pod), at, pod.Name, strings.Repeat("b", AnswerLength)), at)
}

// StartProxy starts nginx as a balancer, for HTTP and for streams.
func StartProxy(ctx context.Context, on *lab.Host, http, stream uint16, backends []netip.AddrPort) (*Nginx, error) {
	var servers []string
	for _, b := range backends {
		servers = append(servers, fmt.Sprintf("server %s;", b))
	}
	config := fmt.Sprintf(balancerConfig, NginxFolder(on), http, stream, strings.Join(servers, " "))
	return StartNginx(ctx, on, config, netip.AddrPortFrom(on.Addr4, http), netip.AddrPortFrom(on.Addr4, stream))
}

// NginxFolder is where a host's nginx has its files.
func NginxFolder(h *lab.Host) string { return filepath.Join(h.Dir, "nginx") }

// StartNginx returns when it listens.
func StartNginx(ctx context.Context, on *lab.Host, config string, listens ...netip.AddrPort) (*Nginx, error) {
	folder := NginxFolder(on)
	if err := os.Mkdir(folder, 0o755); err != nil {
		return nil, err
	}
	file := filepath.Join(folder, "nginx.conf")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var complaints bytes.Buffer
	n := &Nginx{on.Command(ctx, "nginx", "-e", "stderr", "-p", folder, "-c", file), cancel}
	n.cmd.Stderr = &complaints
	if err := n.cmd.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("%w (`make setup` installs nginx)", err)
	}
	for _, at := range listens {
		if err := awaitListener(ctx, on, at); err != nil {
			n.Stop()
			return nil, fmt.Errorf("nginx on %s: %w; it printed:\n%s", on.Name, err, &complaints)
		}
	}
	return n, nil
}

// Who asks a web server at /who, on a new connection. It returns the address of the client and the answer.
func Who(ctx context.Context, from *lab.Host, server netip.AddrPort) (local netip.AddrPort, answer string, err error) {
	client := &http.Client{Timeout: ListenTimeout, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := from.Dial(ctx, network, address)
			if err == nil {
				local = conn.LocalAddr().(*net.TCPAddr).AddrPort()
			}
			return conn, err
		}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/who", server), nil)
	if err != nil {
		return local, "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return local, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %.100q", request.URL, response.Status, text)
	}
	return local, string(text), err
}

// Stop ends nginx.
func (n *Nginx) Stop() {
	n.cancel()
	n.cmd.Wait()
}

// ListenTimeout bounds the wait for nginx to listen.
const ListenTimeout = time.Minute

func awaitListener(ctx context.Context, from *lab.Host, at netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, ListenTimeout)
	defer cancel()
	for {
		conn, err := from.Dial(ctx, "tcp", at.String())
		if err == nil {
			return conn.Close()
		}
		if harness.Pause(ctx, 5*time.Millisecond) != nil {
			return err
		}
	}
}
