// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"fmt"
	"strings"

	"beeline.io/beeline/bench/harness"
)

// kubeRules are the rules of a node with kube-proxy in iptables mode and the network plugin flannel, without those of
// single Services: what every packet between pods passes.
const kubeRules = `*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:FLANNEL-FWD - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
:POLICY - [0:0]
-A INPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A INPUT -j KUBE-NODEPORTS
-A INPUT -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A INPUT -j KUBE-FIREWALL
-A FORWARD -j POLICY
-A FORWARD -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A FORWARD -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A FORWARD -j FLANNEL-FWD
-A OUTPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A OUTPUT -m conntrack --ctstate NEW -j KUBE-SERVICES
-A OUTPUT -j KUBE-FIREWALL
-A FLANNEL-FWD -s PODS -j ACCEPT
-A FLANNEL-FWD -d PODS -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:FLANNEL-POSTRTG - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A POSTROUTING -j FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -j RETURN
-A FLANNEL-POSTRTG -s PODS -d PODS -j RETURN
-A FLANNEL-POSTRTG -s PODS ! -d MULTICAST -j MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
`

// setRules replaces the node's rules by kubeRules and so many of a policy that match nothing here.
func (n *podsNode) setRules(ctx context.Context, rules int) error {
	for _, f := range []struct{ restore, pods, multicast, policy string }{
		{"iptables-nft-restore", "10.10.0.0/16", "224.0.0.0/4", "-A POLICY -s 10.99.%d.%d -j DROP\n"},
		{"ip6tables-nft-restore", "fd00:10::/32", "ff00::/8", "-A POLICY -s fd00:99::%x:%x -j DROP\n"},
	} {
		var policy strings.Builder
		for i := range rules {
			fmt.Fprintf(&policy, f.policy, i/250, i%250)
		}
		text := strings.NewReplacer("PODS", f.pods, "MULTICAST", f.multicast).Replace(kubeRules)
		text = strings.Replace(text, "COMMIT\n", policy.String()+"COMMIT\n", 1)
		if err := harness.RunOn(ctx, n.host, text, f.restore); err != nil {
			return err
		}
	}
	return nil
}
