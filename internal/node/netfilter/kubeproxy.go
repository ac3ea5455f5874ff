// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Chains of kube-proxy and the kubelet in the iptables and IPVS modes (Kubernetes 1.36, pkg/proxy/iptables,
// pkg/proxy/ipvs, pkg/kubelet). Their rules match packets for Services, packets that others have marked, and what
// ctstate INVALID matches. Other programs have chains with the same beginning: kube-router's KUBE-ROUTER-FORWARD
// enforces NetworkPolicies.
var kubeProxyChains = []string{
	"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-NODE-PORT", "KUBE-FORWARD", "KUBE-POSTROUTING", "KUBE-MARK-MASQ", "KUBE-MARK-DROP",
	"KUBE-PROXY-FIREWALL", "KUBE-FIREWALL", "KUBE-LOAD-BALANCER", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER",
	"KUBE-PROXY-CANARY", "KUBE-KUBELET-CANARY",
}

// kubeProxyOnly are those in table filter that the kubelet does not make.
var kubeProxyOnly = []string{"KUBE-FORWARD", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-PROXY-FIREWALL", "KUBE-IPVS-FILTER"}

// Beginnings of the chains of one Service or endpoint.
var kubeProxyPrefixes = []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-XLB-", "KUBE-FW-"}

func isKubeProxyChain(name string) bool {
	return slices.Contains(kubeProxyChains, name) || isServiceChain(name)
}

// isServiceChain reports whether a name is of a chain of one Service or endpoint.
func isServiceChain(name string) bool {
	return slices.ContainsFunc(kubeProxyPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// Proxies returns where kube-proxy has rules for Services, also those that it has left. It lists all chains, of which
// kube-proxy has one for each endpoint. The caller is in the network namespace of NewEdgeWatcher.
func (w *Watcher) Proxies() (names []string, err error) {
	err = w.finder.retry(func() error {
		if err := w.read(); err != nil {
			return err
		}
		names, err = w.finder.nft.proxies()
		return err
	})
	for _, b := range w.finder.all() {
		if c, ok := b.table.(*legacyChain); ok && c.hasProxy() {
			names = append(names, fmt.Sprintf("chains KUBE-* of table %s (%s)", c.table, c.program))
		}
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// proxies returns the tables in which kube-proxy has rules for Services, by name: its own one in the nftables mode,
// and those of iptables-nft with its chains. The kubelet has chains there, too.
func (r *ruleset) proxies() (names []string, err error) {
	if r.client == nil {
		return nil, nil // no nf_tables
	}
	chains, families, err := r.client.ask(query{message: unix.NFT_MSG_GETCHAIN, dump: true})
	if err != nil {
		return nil, fmt.Errorf("list the chains of nftables: %w", err)
	}
	found := map[string]bool{}
	for i, c := range chains {
		key, name := tableKey{families[i], c.text(unix.NFTA_CHAIN_TABLE)}, c.text(unix.NFTA_CHAIN_NAME)
		switch {
		case key.isKubeProxy():
			found["table "+tableName(key.family, key.name)] = true
		case isServiceChain(name) || slices.Contains(kubeProxyOnly, name):
			found["chains KUBE-* of table "+tableName(key.family, key.name)] = true
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}
