// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"

	"beeline.io/beeline/test/cluster"
	"beeline.io/beeline/test/controlplane"
	"beeline.io/beeline/test/node"
)

// This Service shows whether a kube-proxy knows its zone: one of its two endpoints in each family is for that
// zone.
const (
	zonesService = "zones"
	zonesNumber  = 253 // of its ClusterIPs
)

// zoneEndpoints by machine: of IPv4 and of IPv6, without hosts.
var zoneEndpoints = map[string][2]string{
	judged:   {"192.0.2.252", "2001:db8:dead::fc"},
	"node-b": {"192.0.2.253", "2001:db8:dead::fd"},
}

func (p *Pair) createZones(ctx context.Context) error {
	if _, err := p.Cluster.CreateService(ctx, cluster.NewService(zonesService, zonesNumber, nil)); err != nil {
		return err
	}
	for i, slice := range node.Slices(zonesService) {
		for machine, addrs := range zoneEndpoints {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{addrs[i]},
				Hints:     &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zoneOf(machine)}}},
			})
		}
		if _, err := p.Cluster.Client.DiscoveryV1().EndpointSlices(cluster.Namespace).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating EndpointSlice %s: %w", slice.Name, err)
		}
	}
	return nil
}

// startKubeProxy starts kube-proxy, again if it does not learn its zone: version 1.36 watches its Node before
// the handlers are registered, and sometimes drops the event.
func (p *Pair) startKubeProxy(ctx context.Context, options Options) (err error) {
	var change []func(*kubeproxy.KubeProxyConfiguration)
	if options.KubeProxy != nil {
		change = append(change, options.KubeProxy)
	}
	const attempts, patience = 10, 5 * time.Second
	for range attempts {
		if p.Proxy, err = p.Cluster.StartKubeProxy(ctx, p.Sides[0].Lab.Host(judged), change...); err != nil {
			return err
		}
		err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, patience, true, p.kubeProxyKnowsZone)
		if err == nil || !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		if err := p.Proxy.Stop(); err != nil {
			return err
		}
	}
	return fmt.Errorf("kube-proxy was started %d times and never learned its zone: %w", attempts, err)
}

func (p *Pair) kubeProxyKnowsZone(ctx context.Context) (bool, error) {
	for i, family := range []string{"ip", "ip6"} {
		rules, err := p.Sides[0].Lab.Host(judged).Command(ctx, "nft", "list", "table", family, "kube-proxy").Output()
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if err != nil {
			return false, fmt.Errorf("nft list table %s kube-proxy: %w", family, err)
		}
		has := func(machine string) bool {
			return regexp.MustCompile(controlplane.Target(zoneEndpoints[machine][i], 0)).Match(rules)
		}
		if !has(judged) || has("node-b") {
			return false, nil
		}
	}
	return true, nil
}
