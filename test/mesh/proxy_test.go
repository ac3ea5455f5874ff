// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

const (
	outboundPort, inboundPort = 15001, 15006
	proxyUser                 = 1337
)

// A proxy is a program that runs beside the application of a pod.
type proxy struct {
	name string
	// outbound: it asks for the original destination. nginx does not, and takes only connections whose own address
	// is the destination. outbound6: also for that of IPv6 connections.
	outbound, outbound6 bool
	config              string // FOLDER is its folder
	argv                func(folder, config string) []string
	// logs formats the log line of a connection from and to.
	logs string
}

// envoyProgram is where scripts/envoy installs it.
func envoyProgram() string {
	path, err := filepath.Abs("../../build/envoy/envoy")
	if err != nil {
		panic(err)
	}
	return path
}

// envoy has its stock configuration for redirected connections, with a worker for each of two sockets that share the
// port, and one socket for both families on the way out.
var envoy = proxy{
	name: "envoy", outbound: true, outbound6: true, logs: "from %s to %s",
	argv: func(_, config string) []string {
		return []string{envoyProgram(), "--concurrency", "2", "--log-level", "warning", "--disable-hot-restart", "--file-flush-interval-msec", "50", "-c", config}
	},
	config: `
static_resources:
  listeners:
  - name: outbound
    address: {socket_address: {address: "::", ipv4_compat: true, port_value: 15001}}
    listener_filters: [&original {name: envoy.filters.listener.original_dst, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.original_dst.v3.OriginalDst}}]
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: tcp
          cluster: original
          access_log: &log
          - name: envoy.access_loggers.stdout
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog
              log_format: {text_format_source: {inline_string: "from %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% to %DOWNSTREAM_LOCAL_ADDRESS% \n"}}
  - name: inbound
    address: {socket_address: {address: 0.0.0.0, port_value: 15006}}
    additional_addresses: [{address: {socket_address: {address: "::", port_value: 15006}}}]
    listener_filters: [*original]
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: tcp
          cluster: application
          access_log: *log
  clusters:
  - name: original
    type: ORIGINAL_DST
    lb_policy: CLUSTER_PROVIDED
    connect_timeout: 10s
  - name: application
    type: ORIGINAL_DST
    lb_policy: CLUSTER_PROVIDED
    connect_timeout: 10s
    upstream_bind_config:
      source_address: {address: 127.0.0.6, port_value: 0}
      extra_source_addresses: [{address: {address: "::6", port_value: 0}}]
`,
}

var haproxy = proxy{
	name: "haproxy", outbound: true, logs: "from %s to %s",
	argv: func(_, config string) []string { return []string{"haproxy", "-db", "-f", config} },
	config: `
global
	log stdout format raw daemon
defaults
	mode tcp
	retries 0
	timeout connect 10s
	timeout client 1h
	timeout server 1h
	log global
	log-format "from %ci to %[dst]:%[dst_port] "
	option transparent
frontend outbound
	bind 0.0.0.0:15001
	default_backend original
frontend inbound
	bind 0.0.0.0:15006
	bind :::15006 v6only
	use_backend application if { dst 0.0.0.0/0 }
	default_backend application6
backend original
	option transparent
backend application
	option transparent
	source 127.0.0.6
backend application6
	option transparent
	source [::6]
`,
}

var nginx = proxy{
	name: "nginx", logs: "from %s to %s",
	argv: func(folder, config string) []string {
		return []string{"nginx", "-e", "stderr", "-p", folder, "-c", config}
	},
	config: `
load_module /usr/lib/nginx/modules/ngx_stream_module.so;
daemon off;
master_process off;
pid FOLDER/pid;
error_log stderr;
events {}
stream {
	log_format short "from $remote_addr to $server_addr:$server_port ";
	access_log FOLDER/log short;
	map $server_addr $server {
		~: "[$server_addr]";
		default $server_addr;
	}
	map $server_addr $own {
		~: ::6;
		default 127.0.0.6;
	}
	server {
		listen 15006;
		listen [::]:15006;
		proxy_bind $own;
		proxy_half_close on;
		proxy_timeout 1h;
		proxy_pass $server:$server_port;
	}
}
`,
}

// A sidecar is a running proxy.
type sidecar struct {
	proxy
	pod *lab.Host
	cmd *exec.Cmd
	log *node.Log
	// file has the log of a proxy that cannot open its standard output, which belongs to another user.
	file string
	end  func()
}

// startProxy starts a proxy in a pod and waits until it listens.
func (w *world) startProxy(p proxy, pod string) *sidecar {
	w.t.Helper()
	return w.startProxyOf(p, pod, proxyUser)
}

// startProxyOf starts it as a user.
func (w *world) startProxyOf(p proxy, pod string, user int) *sidecar {
	w.t.Helper()
	return w.startProxyAs(p, pod, user, w.Host(pod).Cgroup, syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}})
}

// startProxyAs starts it in a cgroup, with attributes. Its folder belongs to a user.
func (w *world) startProxyAs(p proxy, pod string, user int, cgroup string, attributes syscall.SysProcAttr) *sidecar {
	w.t.Helper()
	s := &sidecar{proxy: p, pod: w.Host(pod), log: &node.Log{}}
	folder := w.folderOf(user)
	s.file = filepath.Join(folder, "log")
	config := filepath.Join(folder, "config.yaml")
	w.must(os.WriteFile(config, []byte(strings.ReplaceAll(p.config, "FOLDER", folder)), 0o644))
	argv := p.argv(folder, config)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = s.log, s.log, &attributes
	w.startIn(cgroup, s.pod, cmd)
	stop, log := func() { end(cmd) }, s.log // s may be another one by then
	s.cmd, s.end = cmd, stop
	w.t.Cleanup(func() {
		stop()
		if w.t.Failed() {
			w.t.Logf("%s in %s printed:\n%s", p.name, pod, log)
		}
	})
	w.eventually(p.name+" listens in "+pod, func() bool { return w.listens(s.pod, inboundPort) && (!p.outbound || w.listens(s.pod, outboundPort)) })
	return s
}

// proxied reports whether the proxy has logged a connection.
func (s *sidecar) proxied(from, to string) bool { return s.lines(from, to) > 0 }

// lines is how many connections the proxy has logged.
func (s *sidecar) lines(from, to string) int {
	text, _ := os.ReadFile(s.file) // only nginx has one
	return strings.Count(s.log.String()+string(text), fmt.Sprintf(s.logs+" ", from, to))
}
