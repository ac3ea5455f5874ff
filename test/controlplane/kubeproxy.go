// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"beeline.io/beeline/test/lab"
)

// Modes of kube-proxy. The two of iptables differ in the kernel's part behind the same rules: nf_tables, which
// is Debian's choice, and the original one, which processes thousands of Services in much less time.
const (
	NFTables       = "nftables"
	IPTables       = "iptables"
	IPTablesLegacy = "iptables-legacy"
)

// Modes are all modes.
var Modes = []string{NFTables, IPTables, IPTablesLegacy}

// The addresses of all pods, which kube-proxy does not masquerade.
const podRanges = "10.10.0.0/16,fd00:10::/32"

// Proxy is a kube-proxy on a node. Its rules are in the node's network namespace, stay when it ends, and are
// removed with the lab.
type Proxy struct {
	Host *lab.Host
	Mode string

	process *Process
}

// StartProxy starts kube-proxy on a node with the configuration of ProxyConfig, and
// does not wait.
func (c *ControlPlane) StartProxy(host *lab.Host, mode string) (*Proxy, error) {
	return c.StartProxyWith(host, mode, c.ProxyConfig(host, mode))
}

// StartProxyWith starts kube-proxy with another configuration than StartProxy.
func (c *ControlPlane) StartProxyWith(host *lab.Host, mode string, config []byte) (*Proxy, error) {
	file := filepath.Join(host.Dir, "kube-proxy.yaml")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		return nil, err
	}
	argv := []string{c.program, "kube-proxy", "--config=" + file}
	if c.ProxyProgram != "" {
		argv = []string{c.ProxyProgram, "--config=" + file}
	}
	p := &Proxy{Host: host, Mode: mode, process: &Process{
		Name: "kube-proxy", Host: host, Log: filepath.Join(host.Dir, "kube-proxy.log"), argv: argv,
	}}
	if mode == IPTablesLegacy {
		path, err := legacyPath(host.Dir)
		if err != nil {
			return nil, err
		}
		p.process.env = append(os.Environ(), "PATH="+path+":"+os.Getenv("PATH"))
	}
	c.proxies = append(c.proxies, p)
	return p, p.process.start()
}

// legacyPath makes a folder in which the names of iptables refer to its legacy program.
func legacyPath(parent string) (string, error) {
	const program = "/usr/sbin/xtables-legacy-multi"
	if _, err := os.Stat(program); err != nil {
		return "", fmt.Errorf("iptables is not installed (scripts/setup): %w", err)
	}
	folder := filepath.Join(parent, "iptables-legacy")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, command := range []string{"", "-save", "-restore"} {
			if err := os.Symlink(program, filepath.Join(folder, family+command)); err != nil && !os.IsExist(err) {
				return "", err
			}
		}
	}
	return folder, nil
}

// ProxyConfig is a configuration that leaves all sysctls unchanged, because some of conntrack's apply to the
// machine and not to the node. Everything else is kube-proxy's default. Health and metrics are at
// 127.0.0.1:10256 and :10249 of the node.
func (c *ControlPlane) ProxyConfig(host *lab.Host, mode string) []byte {
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
`, strings.TrimSuffix(mode, "-legacy"), host.Name, c.Kubeconfig(userProxy), podRanges)
}

// Target is a regular expression of an address in rules that translate to it, as `nft list` prints them:
// "10.10.1.11 . 80" up to Kubernetes 1.36, "10.10.1.11:80" and "[fd00::1]:80" since 1.37. Port 0 stands for any.
func Target(addr string, port uint16) string {
	number := `\d+`
	if port != 0 {
		number = strconv.Itoa(int(port))
	}
	return `[ \[]` + regexp.QuoteMeta(addr) + `( \. |\]?:)` + number + `\b`
}

// AwaitRules waits until the node's rules of both families match each of these regular expressions, as `nft list` or
// `iptables-save` prints them.
func (p *Proxy) AwaitRules(ctx context.Context, what string, all ...string) error {
	return p.process.await(ctx, what, func(ctx context.Context) error {
		rules, err := p.Rules(ctx)
		if err != nil {
			return err
		}
		for _, want := range all {
			if !regexp.MustCompile(want).MatchString(rules) {
				return fmt.Errorf("no rule matches %q", want)
			}
		}
		return nil
	})
}

// Rules are the node's NAT rules, as the tools of the mode print them.
func (p *Proxy) Rules(ctx context.Context) (string, error) {
	commands := [][]string{{"nft", "list", "ruleset"}}
	switch p.Mode {
	case IPTables:
		commands = [][]string{{"iptables-nft-save", "-t", "nat"}, {"ip6tables-nft-save", "-t", "nat"}}
	case IPTablesLegacy:
		commands = [][]string{{"iptables-legacy-save", "-t", "nat"}, {"ip6tables-legacy-save", "-t", "nat"}}
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

// PID is the running kube-proxy's.
func (p *Proxy) PID() int { return p.process.cmd.Process.Pid }

// Stop ends kube-proxy as a service manager does. Its rules stay.
func (p *Proxy) Stop() error { return p.process.end(syscall.SIGTERM) }

// Kill ends kube-proxy as a crash does.
func (p *Proxy) Kill() error { return p.process.end(syscall.SIGKILL) }

// Start starts it again after a Stop or Kill, and does not wait.
func (p *Proxy) Start() error { return p.process.start() }
