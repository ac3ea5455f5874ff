// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"beeline.io/beeline/test/lab"
)

// Modes of kube-proxy.
const (
	NFTables = "nftables"
	IPTables = "iptables"
)

// Modes are those that are measured.
var Modes = []string{NFTables, IPTables}

// The pods' addresses on all nodes of the lab, which kube-proxy does not masquerade.
const podRanges = "10.10.0.0/16,fd00:10::/32"

// Proxy is a kube-proxy on a node. Its rules are in the node's network namespace, stay
// there when it ends, and go with the lab.
type Proxy struct {
	Host *lab.Host
	Mode string

	process *process
}

// StartProxy starts kube-proxy on a node, and does not wait.
func (c *ControlPlane) StartProxy(host *lab.Host, mode string) (*Proxy, error) {
	file := filepath.Join(host.Dir, "kube-proxy.yaml")
	if err := os.WriteFile(file, c.proxyConfig(host, mode), 0o644); err != nil {
		return nil, err
	}
	p := &Proxy{Host: host, Mode: mode, process: &process{
		name: "kube-proxy", host: host, log: filepath.Join(host.Dir, "kube-proxy.log"),
		argv: []string{c.program, "kube-proxy", "--config=" + file},
	}}
	c.proxies = append(c.proxies, p)
	return p, p.process.start()
}

// proxyConfig leaves all sysctls as they are, for some of those of connection tracking
// are the machine's and not the node's. All else is kube-proxy's default.
func (c *ControlPlane) proxyConfig(host *lab.Host, mode string) []byte {
	return fmt.Appendf(nil, `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
hostnameOverride: %s
clientConnection: {kubeconfig: %s, qps: 10000, burst: 10000}
detectLocalMode: ClusterCIDR
clusterCIDR: %s
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
oomScoreAdj: 0
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, mode, host.Name, c.Kubeconfig(), podRanges)
}

// Await waits until the node's rules of both families have each of these strings, as
// `nft list` or `iptables-save` prints them.
func (p *Proxy) Await(ctx context.Context, what string, all ...string) error {
	return p.process.await(ctx, what, func(ctx context.Context) error {
		rules, err := p.Rules(ctx)
		if err != nil {
			return err
		}
		for _, want := range all {
			if !strings.Contains(rules, want) {
				return fmt.Errorf("no rule has %q", want)
			}
		}
		return nil
	})
}

// Rules are those of the node for NAT, as the tools of the mode print them.
func (p *Proxy) Rules(ctx context.Context) (string, error) {
	commands := [][]string{{"nft", "list", "ruleset"}}
	if p.Mode == IPTables {
		commands = [][]string{{"iptables-save", "-t", "nat"}, {"ip6tables-save", "-t", "nat"}}
	}
	var rules strings.Builder
	for _, argv := range commands {
		out, err := p.Host.Command(ctx, argv...).Output()
		if err != nil {
			return "", fmt.Errorf("%s: %w", argv[0], err)
		}
		rules.Write(out)
	}
	return rules.String(), nil
}

// PID of the running kube-proxy.
func (p *Proxy) PID() int { return p.process.cmd.Process.Pid }

// Log is the end of what it has printed.
func (p *Proxy) Log() string { return p.process.logTail() }

// Stop ends kube-proxy as a service manager does. Its rules stay.
func (p *Proxy) Stop() error { return p.process.end(syscall.SIGTERM) }

// Restart starts it again after a Stop, and does not wait.
func (p *Proxy) Restart() error { return p.process.start() }
