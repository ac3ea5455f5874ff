// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"os"

	"beeline.io/beeline/bench/web"
)

// A meshProxy is a program beside an application. In the configuration FOLDER is its folder, PORT where it listens, and
// SERVER the web server.
type meshProxy struct {
	name, config string
	argv         func(folder, config string) []string
}

// proxies are the measured ones. Without the program of Envoy that is left out; an empty path stands for all.
func proxies(envoy string) (all []meshProxy) {
	if _, err := os.Stat(envoy); envoy == "" || err == nil {
		all = append(all, meshProxy{name: "Envoy", config: meshEnvoy, argv: func(_, config string) []string {
			return []string{envoy, "--concurrency", "1", "--log-level", "error", "--disable-hot-restart", "-c", config}
		}})
	}
	return append(all,
		meshProxy{name: "nginx", config: nginx, argv: func(folder, config string) []string {
			return []string{"nginx", "-e", "stderr", "-p", folder, "-c", config}
		}},
		meshProxy{name: "haproxy", config: haProxy, argv: func(_, config string) []string { return []string{"haproxy", "-db", "-f", config} }})
}

// meshEnvoy asks for the original destination, as Istio's does.
const meshEnvoy = `
static_resources:
  listeners:
  - name: outbound
    address: {socket_address: {address: 0.0.0.0, port_value: PORT}}
    listener_filters: [{name: envoy.filters.listener.original_dst, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.original_dst.v3.OriginalDst}}]
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: tcp, cluster: original}
  clusters:
  - {name: original, type: ORIGINAL_DST, lb_policy: CLUSTER_PROVIDED, connect_timeout: 10s}
`

// nginx cannot ask for the original destination, and forwards everything to the web server.
const nginx = `
load_module ` + web.StreamModule + `;
daemon off;
master_process off;
worker_processes 1;
pid FOLDER/pid;
error_log stderr crit;
events { worker_connections 1024; }
stream {
	server {
		listen PORT backlog=1024;
		proxy_pass SERVER;
	}
}
`

const haProxy = `
global
	nbthread 1
defaults
	mode tcp
	timeout connect 10s
	timeout client 60s
	timeout server 60s
frontend all
	bind 0.0.0.0:PORT
	default_backend original
backend original
	option transparent
`
