// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	componentbase "k8s.io/component-base/config/v1alpha1"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"beeline.io/beeline/test/lab"
)

// The pods' addresses on all nodes of the lab, which kube-proxy does not
// masquerade.
const podRanges = "10.10.0.0/16,fd00:10::/32"

// KubeProxy is a kube-proxy on a node of the lab. Its rules are in the node's
// network namespace and go with it.
type KubeProxy struct {
	Host *lab.Host

	cluster *Cluster
	process *process
}

// StartKubeProxy starts kube-proxy in nftables mode on a node, and returns when
// its rules are complete. What the functions change in its configuration comes
// last. Health and metrics are at 127.0.0.1:10256 and :10249 of the node.
func (c *Cluster) StartKubeProxy(ctx context.Context, host *lab.Host, change ...func(*kubeproxy.KubeProxyConfiguration)) (*KubeProxy, error) {
	config := c.kubeProxyConfig(host)
	for _, f := range change {
		f(config)
	}
	text, err := yaml.Marshal(config)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(host.Dir, "kube-proxy.yaml")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return nil, err
	}
	p := &KubeProxy{Host: host, cluster: c, process: &process{
		name: "kube-proxy",
		host: host,
		argv: []string{c.program, "kube-proxy", "--config=" + file},
		log:  filepath.Join(host.Dir, "kube-proxy.log"),
	}}
	c.proxies = append(c.proxies, p)
	return p, p.Start(ctx)
}

// Start starts it again after a Stop or Kill.
func (p *KubeProxy) Start(ctx context.Context) error {
	if err := p.process.start(); err != nil {
		return err
	}
	mark, err := p.cluster.Mark(ctx)
	if err != nil {
		return err
	}
	return p.Await(ctx, mark)
}

// Stop ends kube-proxy as a service manager does. Its rules stay.
func (p *KubeProxy) Stop() error { return p.process.end(syscall.SIGTERM) }

// Kill ends kube-proxy as a crash does.
func (p *KubeProxy) Kill() error { return p.process.end(syscall.SIGKILL) }

// kubeProxyConfig leaves all sysctls as they are: some of those of connection
// tracking are the machine's and not the node's.
func (c *Cluster) kubeProxyConfig(host *lab.Host) *kubeproxy.KubeProxyConfiguration {
	var off metav1.Duration
	var zero int32
	return &kubeproxy.KubeProxyConfiguration{
		TypeMeta:         metav1.TypeMeta{APIVersion: "kubeproxy.config.k8s.io/v1alpha1", Kind: "KubeProxyConfiguration"},
		Mode:             "nftables",
		HostnameOverride: host.Name,
		ClientConnection: componentbase.ClientConnectionConfiguration{
			Kubeconfig: c.Kubeconfig(userProxy), QPS: 10000, Burst: 10000,
		},
		DetectLocalMode:    "ClusterCIDR",
		ClusterCIDR:        podRanges,
		HealthzBindAddress: "127.0.0.1:10256",
		MetricsBindAddress: "127.0.0.1:10249",
		OOMScoreAdj:        &zero,
		Conntrack: kubeproxy.KubeProxyConntrackConfiguration{
			MaxPerCore: &zero, Min: &zero, TCPEstablishedTimeout: &off, TCPCloseWaitTimeout: &off,
		},
		NFTables: kubeproxy.KubeProxyNFTablesConfiguration{
			// The default is a second, which every step of a test would wait for.
			MinSyncPeriod: metav1.Duration{Duration: 5 * time.Millisecond},
		},
	}
}
