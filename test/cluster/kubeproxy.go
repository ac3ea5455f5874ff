// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"beeline.io/beeline/test/controlplane"
	"beeline.io/beeline/test/lab"
)

// KubeProxy is a kube-proxy on a node of the lab.
type KubeProxy struct {
	*controlplane.Proxy

	cluster *Cluster
}

// StartKubeProxy starts kube-proxy in nftables mode on a node, and returns when its rules are complete. The
// functions change its configuration last.
func (c *Cluster) StartKubeProxy(ctx context.Context, host *lab.Host, change ...func(*kubeproxy.KubeProxyConfiguration)) (*KubeProxy, error) {
	return c.StartKubeProxyIn(ctx, controlplane.NFTables, host, change...)
}

// StartKubeProxyIn is StartKubeProxy in another mode.
func (c *Cluster) StartKubeProxyIn(ctx context.Context, mode string, host *lab.Host, change ...func(*kubeproxy.KubeProxyConfiguration)) (*KubeProxy, error) {
	config := &kubeproxy.KubeProxyConfiguration{}
	if err := yaml.UnmarshalStrict(c.ProxyConfig(host, mode), config); err != nil {
		return nil, fmt.Errorf("configuration of kube-proxy: %w", err)
	}
	// The default is a second, for which every step of a test would wait.
	config.NFTables.MinSyncPeriod = metav1.Duration{Duration: 5 * time.Millisecond}
	config.IPTables.MinSyncPeriod = config.NFTables.MinSyncPeriod
	for _, f := range change {
		f(config)
	}
	text, err := yaml.Marshal(config)
	if err != nil {
		return nil, err
	}
	p := &KubeProxy{cluster: c}
	if p.Proxy, err = c.StartProxyWith(host, mode, text); err != nil {
		return nil, err
	}
	return p, p.awaitNextMark(ctx)
}

// Start starts it again after a Stop or Kill, and returns when its rules are complete.
func (p *KubeProxy) Start(ctx context.Context) error {
	if err := p.Proxy.Start(); err != nil {
		return err
	}
	return p.awaitNextMark(ctx)
}

func (p *KubeProxy) awaitNextMark(ctx context.Context) error {
	mark, err := p.cluster.Mark(ctx)
	if err != nil {
		return err
	}
	return p.Await(ctx, mark)
}
