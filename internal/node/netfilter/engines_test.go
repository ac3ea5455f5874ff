// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// engines are rules as network plugins and policy engines write them, by the names that docs/operate/pods.md has for
// them, and what is found: marks are no filter unless somebody reads them.
var engines = []struct{ name, tool, rules, want string }{
	{"flannel", "iptables-nft-restore", `*filter
:FORWARD DROP [0:0]
:FLANNEL-FWD - [0:0]
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A FLANNEL-FWD -s 10.10.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d 10.10.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
COMMIT
*nat
:FLANNEL-POSTRTG - [0:0]
-A POSTROUTING -j FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -j RETURN
-A FLANNEL-POSTRTG -s 10.10.1.0/24 -d 10.10.0.0/16 -j RETURN
-A FLANNEL-POSTRTG -s 10.10.0.0/16 -d 10.10.1.0/24 -j RETURN
-A FLANNEL-POSTRTG ! -s 10.10.0.0/16 -d 10.10.1.0/24 -j RETURN
-A FLANNEL-POSTRTG -s 10.10.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s 10.10.0.0/16 -d 10.10.0.0/16 -j MASQUERADE --random-fully
COMMIT
`, ""},
	{"flannel", "nft", `table ip flannel-ipv4 {
	chain postrtg {
		type nat hook postrouting priority srcnat; policy accept;
		meta mark & 0x4000 == 0x4000 return
		ip saddr 10.10.1.0/24 ip daddr 10.10.0.0/16 return
		ip saddr 10.10.0.0/16 ip daddr 10.10.1.0/24 return
		ip saddr != 10.10.0.0/16 ip daddr 10.10.1.0/24 return
		ip saddr 10.10.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
		ip saddr != 10.10.0.0/16 ip daddr 10.10.0.0/16 masquerade fully-random
	}
	chain forward {
		type filter hook forward priority filter; policy accept;
		ip saddr 10.10.0.0/16 accept
		ip daddr 10.10.0.0/16 accept
	}
}
`, ""},
	{"AWS VPC CNI", "iptables-nft-restore", `*mangle
-A PREROUTING -i eth0 -m addrtype --dst-type LOCAL --limit-iface-in -j CONNMARK --set-xmark 0x80/0x80
-A PREROUTING -i cali+ -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80
COMMIT
*nat
:AWS-SNAT-CHAIN-0 - [0:0]
-A POSTROUTING -j AWS-SNAT-CHAIN-0
-A AWS-SNAT-CHAIN-0 -d 10.0.0.0/8 -j RETURN
-A AWS-SNAT-CHAIN-0 ! -o vlan+ -m addrtype ! --dst-type LOCAL -j SNAT --to-source 192.0.2.1 --random-fully
COMMIT
`, ""},
	{"kindnet", "nft", `table inet kindnet-ipmasq {
	set noMasqV4 { type ipv4_addr; flags interval; elements = { 10.10.0.0/16 }; }
	chain postrouting {
		type nat hook postrouting priority srcnat - 10; policy accept;
		ct direction reply return
		ip daddr @noMasqV4 return
		fib saddr type local return
		ip saddr 10.10.1.0/24 masquerade
	}
}
`, ""},
	{"kube-router", "iptables-nft-restore", `*filter
:KUBE-ROUTER-FORWARD - [0:0]
:KUBE-NWPLCY-DEFAULT - [0:0]
:KUBE-POD-FW-A - [0:0]
:KUBE-POD-FW-B - [0:0]
-A FORWARD -m comment --comment "kube-router netpol" -j KUBE-ROUTER-FORWARD
` + kubeRouterPod("A", "10.10.1.2", "") + kubeRouterPod("B", "10.10.1.3", "") + `-A KUBE-ROUTER-FORWARD -m comment --comment "rule to explicitly ACCEPT traffic that comply to network policies" -m mark --mark 0x20000/0x20000 -j ACCEPT
-A KUBE-NWPLCY-DEFAULT -m comment --comment "rule to mark traffic matching a network policy" -j MARK --set-xmark 0x10000/0x10000
COMMIT
*nat
:CNI-HOSTPORT-MASQ - [0:0]
-A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
COMMIT
`, "1 invalid rule KUBE-POD-FW-A filter: DROP\n2 invalid rule KUBE-POD-FW-B filter: DROP\n1 marks 0x20000 rule KUBE-POD-FW-A filter: MARK\n12 marks 0x30000 rule KUBE-NWPLCY-DEFAULT filter: MARK\n2 marks 0x20000 rule KUBE-POD-FW-B filter: MARK"},
	{"kube-router", "iptables-nft-restore", `*filter
:KUBE-ROUTER-FORWARD - [0:0]
:KUBE-NWPLCY-DEFAULT - [0:0]
:KUBE-NWPLCY-X - [0:0]
:KUBE-POD-FW-A - [0:0]
:KUBE-POD-FW-B - [0:0]
-A FORWARD -m comment --comment "kube-router netpol" -j KUBE-ROUTER-FORWARD
` + kubeRouterPod("A", "10.10.1.2", "") + kubeRouterPod("B", "10.10.1.3", "X") + `-A KUBE-ROUTER-FORWARD -m mark --mark 0x20000/0x20000 -j ACCEPT
-A KUBE-NWPLCY-DEFAULT -j MARK --set-xmark 0x10000/0x10000
-A KUBE-NWPLCY-X -s 10.10.77.0/24 -d 10.10.1.3/32 -p tcp -m tcp --dport 80 -j MARK --set-xmark 0x10000/0x10000
-A KUBE-NWPLCY-X -s 10.10.77.0/24 -d 10.10.1.3/32 -p tcp -m tcp --dport 80 -m mark --mark 0x10000/0x10000 -j RETURN
COMMIT
`, "1 invalid rule KUBE-POD-FW-A filter: DROP\n2 invalid rule KUBE-POD-FW-B filter: DROP\n2 rule KUBE-POD-FW-B filter: REJECT\n2 rule KUBE-POD-FW-B filter: log"},
	{"portmap", "iptables-nft-restore", `*nat
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-HOSTPORT-MASQ - [0:0]
:CNI-HOSTPORT-SETMARK - [0:0]
:CNI-DN-a - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
-A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000
-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
-A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 8080 -j CNI-DN-a
-A CNI-DN-a -s 10.10.1.0/24 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-a -s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-a -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.10.1.2:80
COMMIT
`, ""},
	{"Calico", "iptables-nft-restore", `*filter
:cali-FORWARD - [0:0]
:cali-from-wl-dispatch - [0:0]
:cali-fw-cali1 - [0:0]
:cali-fw-cali2 - [0:0]
:cali-pro-kns.default - [0:0]
-A FORWARD -j cali-FORWARD
-A FORWARD -m comment --comment "Policy explicitly accepted packet." -m mark --mark 0x10000/0x10000 -j ACCEPT
-A FORWARD -j MARK --set-xmark 0x10000/0x10000
-A cali-FORWARD -j MARK --set-xmark 0x0/0xe0000
-A cali-FORWARD -i cali+ -j cali-from-wl-dispatch
-A cali-from-wl-dispatch -i cali1 -g cali-fw-cali1
-A cali-from-wl-dispatch -i cali2 -g cali-fw-cali2
-A cali-from-wl-dispatch -m comment --comment "Unknown interface" -j DROP
` + calicoWorkload("cali1") + calicoWorkload("cali2") + `-A cali-pro-kns.default -j MARK --set-xmark 0x10000/0x10000
-A cali-pro-kns.default -m mark --mark 0x10000/0x10000 -j RETURN
COMMIT
`, "1 invalid rule cali-fw-cali1 filter: DROP\n1 rule cali-fw-cali1 filter: DROP\n2 invalid rule cali-fw-cali2 filter: DROP\n2 rule cali-fw-cali2 filter: DROP"},
}

// kubeRouterPod are the rules of a pod: with a policy, or without.
func kubeRouterPod(name, address, policy string) string {
	if policy == "" {
		policy = "DEFAULT"
	}
	return strings.NewReplacer("NAME", name, "ADDRESS", address, "POLICY", policy).Replace(`-A KUBE-ROUTER-FORWARD -d ADDRESS/32 -m comment --comment "rule to jump traffic destined to POD" -j KUBE-POD-FW-NAME
-A KUBE-ROUTER-FORWARD -d ADDRESS/32 -m physdev --physdev-is-bridged -j KUBE-POD-FW-NAME
-A KUBE-ROUTER-FORWARD -s ADDRESS/32 -m comment --comment "rule to jump traffic from POD" -j KUBE-POD-FW-NAME
-A KUBE-ROUTER-FORWARD -s ADDRESS/32 -m physdev --physdev-is-bridged -j KUBE-POD-FW-NAME
-A KUBE-POD-FW-NAME -m comment --comment "rule for stateful firewall for pod" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-POD-FW-NAME -m comment --comment "rule to drop invalid state for pod" -m conntrack --ctstate INVALID -j DROP
-A KUBE-POD-FW-NAME -d ADDRESS/32 -m addrtype --src-type LOCAL -m comment --comment "rule to permit the traffic traffic to pods when source is the pod's local node" -j ACCEPT
-A KUBE-POD-FW-NAME -s ADDRESS/32 -m comment --comment "run through default egress network policy chain" -j KUBE-NWPLCY-DEFAULT
-A KUBE-POD-FW-NAME -d ADDRESS/32 -m comment --comment "run through nw policy" -j KUBE-NWPLCY-POLICY
-A KUBE-POD-FW-NAME -m comment --comment "rule to log dropped traffic POD" -m mark ! --mark 0x10000/0x10000 -m limit --limit 10/min --limit-burst 10 -j NFLOG --nflog-group 100
-A KUBE-POD-FW-NAME -m comment --comment "rule to REJECT traffic destined for POD" -m mark ! --mark 0x10000/0x10000 -j REJECT --reject-with icmp-port-unreachable
-A KUBE-POD-FW-NAME -j MARK --set-xmark 0x0/0x10000
-A KUBE-POD-FW-NAME -m comment --comment "set mark to ACCEPT traffic that comply to network policies" -j MARK --set-xmark 0x20000/0x20000
`)
}

// calicoWorkload are the rules for what a pod sends that no policy selects.
func calicoWorkload(device string) string {
	return strings.ReplaceAll(`-A cali-fw-DEVICE -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A cali-fw-DEVICE -m conntrack --ctstate INVALID -j DROP
-A cali-fw-DEVICE -j MARK --set-xmark 0x0/0x10000
-A cali-fw-DEVICE -p udp -m comment --comment "Drop VXLAN encapped packets originating in workloads" -m multiport --dports 4789 -j DROP
-A cali-fw-DEVICE -p 4 -m comment --comment "Drop IPinIP encapped packets originating in workloads" -j DROP
-A cali-fw-DEVICE -j cali-pro-kns.default
-A cali-fw-DEVICE -m comment --comment "Return if profile accepted" -m mark --mark 0x10000/0x10000 -j RETURN
-A cali-fw-DEVICE -m comment --comment "Drop if no profiles matched" -j DROP
`, "DEVICE", device)
}

// The engines that docs/operate/pods.md names leave as many pods to the shortcut as it says.
func TestEngines(t *testing.T) {
	var names []string
	for _, e := range engines {
		names = append(names, e.name)
		inNamespace(t, func() {
			argv := []string{e.tool}
			if e.tool == "nft" {
				argv = append(argv, "-f", "-")
			}
			load(t, e.rules, argv...)
			var got []string
			for _, line := range strings.Split(strings.NewReplacer(" ip ", " ", " drop", " DROP").Replace(found(t, &Finder{}, subject())), "\n") {
				if strings.Contains(e.want, " marks ") || !strings.Contains(line, " marks ") {
					got = append(got, line)
				}
			}
			want := strings.Split(e.want, "\n")
			if slices.Sort(want); !slices.Equal(got, want) {
				t.Errorf("%s: found\n%s\nwant\n%s", e.name, strings.Join(got, "\n"), e.want)
			}
		})
	}
	page, err := os.ReadFile("../../../docs/operate/pods.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| rules of |")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")
	for _, row := range rows[2:] {
		name := strings.TrimSpace(strings.Split(row, "|")[1])
		if !slices.Contains(names, name) {
			t.Errorf("no rules of %s, which pods.md has, are tested", name)
		}
		names = slices.DeleteFunc(names, func(one string) bool { return one == name })
	}
	if len(names) > 0 {
		t.Errorf("pods.md does not have %v", names)
	}
}
