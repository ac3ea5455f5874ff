// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"slices"
	"strings"
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

// Beginnings of the chains of one Service or endpoint.
var kubeProxyPrefixes = []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-XLB-", "KUBE-FW-"}

func isKubeProxyChain(name string) bool {
	return slices.Contains(kubeProxyChains, name) ||
		slices.ContainsFunc(kubeProxyPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}
