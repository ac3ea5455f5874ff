// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// Each case shows by nft and the kernel which rules would drop packets that the edge forwards past them.
func TestRulesForTheEdge(t *testing.T) {
	subject := EdgeSubject{
		Devices:  []Device{{Index: 101, Name: "eth0"}, {Index: 102, Name: "eth1"}},
		Served:   []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		Backends: []netip.Addr{netip.MustParseAddr("10.10.2.2"), netip.MustParseAddr("fd00:10:2::2")},
		Own:      []netip.Addr{netip.MustParseAddr("198.51.100.1")},

		ServedPorts: []Ports{{80, 80}, {443, 443}}, NodePorts: []Ports{{30080, 30080}}, SNATPorts: []Ports{{20000, 29999}}, BackendPorts: []Ports{{8080, 8081}},
	}
	for _, c := range []struct{ name, rules, want string }{
		{"egress", "table netdev t { chain c { type filter hook egress device eth1 priority 0; ip daddr 10.10.2.2 drop; }; }", "2 rule c netdev t (handle 2): drop"},
		{"ingress", "table netdev t { chain c { type filter hook ingress device eth0 priority 0; ip saddr 192.0.2.7 drop; }; }", "12 rule c netdev t (handle 2): drop"},
		{"of another device", "table netdev t { chain c { type filter hook egress device lo priority 0; drop; }; }", ""},
		{"without loss", "table netdev t { chain c { type filter hook egress device eth1 priority 0; counter; meta mark 7 drop; }; }", ""},
		{"policy of forward", "table inet t { chain c { type filter hook forward priority 0; policy drop; }; }", "12 policy c inet t: drop"},
		{"to a backend on another node", "table ip6 t { chain c { type filter hook forward priority 0; ip6 daddr fd00:10:2::/48 drop; }; }", "12 rule c ip6 t (handle 2): drop"},
		{"to others", "table ip t { chain c { type filter hook forward priority 0; ct state invalid drop; ip daddr 10.10.1.0/24 drop; }; }", ""},
		{"accepted before", "table ip t { chain c { type filter hook forward priority 0; policy drop; ip daddr 10.10.0.0/16 accept; }; }", ""},
		{"unknown", "table ip t { chain c { type filter hook postrouting priority 0; numgen inc mod 2 0 drop; }; }", "12 rule c ip t (handle 2): drop"},
		{"raw", "table ip t { chain c { type filter hook prerouting priority raw; ip saddr 192.0.2.7 ip daddr 192.0.2.1 drop; }; }", "12 rule c ip t (handle 2): drop"},
		{"mangle, a source", "table ip t { chain c { type filter hook prerouting priority mangle; ip saddr 192.0.2.7 drop; }; }", "12 rule c ip t (handle 2): drop"},
		{"raw, a destination that is not served", "table ip t { chain c { type filter hook prerouting priority raw; ip daddr 10.10.2.2 drop; }; }", ""},
		{"after DNAT, to a backend", "table ip6 t { chain c { type filter hook prerouting priority dstnat + 5; ip6 daddr fd00:10:2::2 drop; }; }", "12 rule c ip6 t (handle 2): drop"},
		{"a reply", "table inet t { chain c { type filter hook prerouting priority raw; ip saddr 10.10.2.0/24 ip daddr 198.51.100.1 drop; }; }", "12 rule c inet t (handle 2): drop"},
		{"policy of prerouting", "table ip6 t { chain c { type filter hook prerouting priority raw; policy drop; }; }", "12 policy c ip6 t: drop"},
		{"invalid packets, and from pods' devices", "table inet t { chain c { type filter hook prerouting priority mangle; ct state invalid drop; iifname cali* drop; }; }", ""},
		{"unknown at prerouting", "table ip t { chain c { type filter hook prerouting priority mangle; numgen inc mod 2 0 drop; }; }", "12 rule c ip t (handle 2): drop"},
		{"a port of a Service", "table ip t { chain c { type filter hook prerouting priority raw; tcp dport 443 drop; }; }", "12 rule c ip t (handle 2): drop"},
		{"ports that no Service has", "table ip t { chain c { type filter hook prerouting priority raw; tcp dport { 22, 8080 } drop; ip daddr 198.51.100.1 udp dport 53 drop; }; }", ""},
		{"a NodePort", "table inet t { chain c { type filter hook prerouting priority raw; tcp dport 30000-32767 reject with tcp reset; }; }", "12 rule c inet t (handle 2): reject"},
		{"ports of the node, from pods", "table inet t { chain c { type filter hook prerouting priority raw; ip saddr 10.10.0.0/16 tcp dport { 22, 10250 } drop; }; }", ""},
		{"a port that no backend has", "table ip t { chain c { type filter hook forward priority 0; ip daddr 10.10.2.0/24 tcp dport 22 drop; }; }", ""},
		{"ports at ingress of netdev", "table netdev t { chain c { type filter hook ingress device eth0 priority 0; tcp dport 22 drop; udp dport 443 drop; }; }", "12 rule c netdev t (handle 3): drop"},
		{"replies at egress of netdev", "table netdev t { chain c { type filter hook egress device eth0 priority 0; ip saddr 192.0.2.1 tcp sport 80 drop; }; }", "1 rule c netdev t (handle 2): drop"},
		{"other connections at egress of netdev", "table netdev t { chain c { type filter hook egress device eth0 priority 0; ip saddr 198.51.100.1 tcp dport 25 drop; ip daddr 203.0.113.0/24 tcp sport 22 drop; }; }", "1 rule c netdev t (handle 2): drop"},
		{"a blocklist", "table ip t { set s { type ipv4_addr; flags interval; elements = { 203.0.113.0/24, 192.0.2.7 }; }; chain c { type filter hook prerouting priority raw; ip saddr @s drop; }; }", "12 rule c ip t (handle 3): drop"},
		{"an empty blocklist", "table ip t { set s { type ipv4_addr; flags interval; }; chain c { type filter hook prerouting priority raw; ip saddr @s drop; }; }", ""},
		{"redirect", "table ip t { chain c { type nat hook prerouting priority dstnat; ip daddr 192.0.2.1 tcp dport 80 redirect to :3128; }; }", "12 rule c ip t (handle 2): redirect"},
		{"redirect of other ports, and of pods", "table ip t { chain c { type nat hook prerouting priority dstnat; tcp dport 30081 dnat to 10.10.1.9:80; iifname cali* tcp dport 80 redirect to :3128; }; }", ""},
		{"tproxy", "table ip t { chain c { type filter hook prerouting priority mangle; tcp dport 80 tproxy to :3128; }; }", "12 rule c ip t (handle 2): tproxy"},
		{"a mark that a rule reads", "table inet t { chain c { type filter hook prerouting priority raw; ip saddr 192.0.2.7 meta mark set 7; }; chain d { type filter hook forward priority 0; meta mark 7 drop; }; }", "12 rule d inet t (handle 4): drop"},
		{"accepted as translated", "table inet t { chain c { type filter hook forward priority 0; policy drop; ct status dnat accept; }; }", ""},
		{"dropped as translated", "table inet t { chain c { type filter hook forward priority 0; ct status dnat drop; }; }", "12 rule c inet t (handle 2): drop"},
		{"kube-proxy", "table ip kube-proxy { chain c { type filter hook prerouting priority -110; ip daddr 192.0.2.1 drop; }; }", ""},
		{"NAT, and locally received packets", "table ip t { chain c { type nat hook postrouting priority 100; masquerade; }; chain i { type filter hook input priority 0; policy drop; }; }", ""},
	} {
		inNamespace(t, func() {
			if strings.HasPrefix(c.rules, "table netdev") {
				load(t, "link add eth0 type veth peer name eth1\n", "ip", "-batch", "-")
			}
			load(t, strings.ReplaceAll(c.rules, "; ", "\n"), "nft", "-f", "-")
			w, err := NewEdgeWatcher()
			if err != nil {
				t.Error(err)
				return
			}
			defer w.Close()
			all, err := w.FindForEdge(subject)
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			var lines []string
			for _, one := range all {
				names := ""
				for _, index := range one.Devices {
					names += fmt.Sprint(index - 100)
				}
				lines = append(lines, names+" "+strings.NewReplacer("nftables ", "", "in chain ", "", "of table ", "").Replace(one.What))
			}
			if got := strings.Join(lines, "\n"); got != c.want {
				t.Errorf("%s: found\n%s\nwant\n%s", c.name, got, c.want)
			}
		})
	}
}

// Rules of iptables-legacy and the same in iptables-nft count where they concern the edge's packets; not rules that
// only accept, mark or translate, and none of kube-proxy.
func TestIPTablesForTheEdge(t *testing.T) {
	subject := EdgeSubject{
		Devices: []Device{{Index: 101, Name: "eth0"}}, Served: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Backends: []netip.Addr{netip.MustParseAddr("10.10.2.2")},
		ServedPorts: []Ports{{80, 81}}, Own: []netip.Addr{netip.MustParseAddr("198.51.100.1")}, NodePorts: []Ports{{30080, 30080}}, SNATPorts: []Ports{{20000, 29999}}, BackendPorts: []Ports{{80, 80}},
	}
	for _, c := range []struct {
		name, rules string
		legacy, nft []string // tables
	}{
		{"raw", "*raw\n-A PREROUTING -s 192.0.2.7 -j DROP\nCOMMIT\n", []string{"raw"}, []string{"raw"}},
		{"mangle, by a chain", "*mangle\n:deny - [0:0]\n:other - [0:0]\n-A deny -j DROP\n-A PREROUTING -j other\n-A PREROUTING -s 192.0.2.7 -g deny\nCOMMIT\n", []string{"mangle"}, []string{"mangle"}},
		{"reject", "*filter\n-A FORWARD -d 10.10.2.2 -j REJECT\nCOMMIT\n", []string{"filter"}, []string{"filter"}},
		{"policy", "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -d 10.10.2.3 -j ACCEPT\nCOMMIT\n", []string{"filter"}, []string{"filter"}},
		{"others", "*filter\n:deny - [0:0]\n-A INPUT -j DROP\n-A OUTPUT -j deny\n-A deny -j DROP\nCOMMIT\n", nil, nil},
		{"marks and counts", "*mangle\n-A PREROUTING -j MARK --set-mark 7\n-A FORWARD -p tcp --syn -j TCPMSS --clamp-mss-to-pmtu\nCOMMIT\n", nil, nil},
		{"kube-proxy", kubeProxyRules, nil, nil},
		{"what others match", "*filter\n-A FORWARD -d 10.10.1.0/24 -j DROP\n-A FORWARD -i docker0 -j DROP\n-A FORWARD -p tcp --dport 22 -j DROP\n-A FORWARD -p udp -m multiport --dports 1:79,81 -j DROP\nCOMMIT\n" +
			"*raw\n-A PREROUTING -s 198.51.100.0/24 -i eth1 -j DROP\n-A PREROUTING -d 198.51.100.1 -p tcp --dport 22 -j DROP\nCOMMIT\n", nil, nil},
		{"inverted", "*raw\n-A PREROUTING ! -s 203.0.113.0/24 -d 192.0.2.1 -p tcp -m tcp --dport 80 -j DROP\nCOMMIT\n*filter\n-A FORWARD ! -d 10.10.0.0/16 -j DROP\nCOMMIT\n*mangle\n-A FORWARD ! -i lo -p tcp -j DROP\nCOMMIT\n", []string{"raw", "mangle"}, []string{"raw", "mangle"}},
		{"accepted before", "*filter\n:FORWARD DROP [0:0]\n:pods - [0:0]\n-A FORWARD -j pods\n-A FORWARD -d 10.10.0.0/16 -j ACCEPT\n-A pods -s 10.10.0.0/16 -j RETURN\n-A pods -m conntrack --ctstate DNAT -j ACCEPT\nCOMMIT\n", nil, nil},
		{"policy after a goto", "*filter\n:FORWARD DROP [0:0]\n:pods - [0:0]\n-A FORWARD -g pods\n-A FORWARD -d 10.10.0.0/16 -j ACCEPT\n-A pods -s 10.10.0.0/16 -j RETURN\n-A pods -m conntrack --ctstate DNAT -j ACCEPT\nCOMMIT\n", []string{"filter"}, []string{"filter"}},
		{"accepted as translated", "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT\nCOMMIT\n", nil, nil},
		{"an inverted source of which the rest is accepted", "*raw\n-A PREROUTING -s 0.0.0.0/1 -j ACCEPT\n-A PREROUTING ! -s 128.0.0.0/1 -j DROP\nCOMMIT\n", nil, nil},
		{"returns", "*filter\n:pods - [0:0]\n-A FORWARD -j pods\n-A FORWARD -j DROP\n-A pods -d 10.10.3.0/24 -j ACCEPT\n-A pods -j RETURN\n-A pods -j ACCEPT\nCOMMIT\n", []string{"filter"}, []string{"filter"}},
		{"Docker", dockerRules, []string{"filter"}, []string{"filter"}},
		{"Docker beside flannel", strings.ReplaceAll(dockerRules, ":FORWARD DROP", ":FLANNEL-FWD - [0:0]\n:FORWARD DROP") +
			"*filter\n-A FORWARD -j FLANNEL-FWD\n-A FLANNEL-FWD -s 10.10.0.0/16 -j ACCEPT\n-A FLANNEL-FWD -d 10.10.0.0/16 -j ACCEPT\nCOMMIT\n", nil, nil},
		{"Calico, whose policies accept what has been translated", calicoRules, nil, nil},
		{"flannel and portmap", "*filter\n:FLANNEL-FWD - [0:0]\n-A FORWARD -j FLANNEL-FWD\n-A FLANNEL-FWD -s 10.10.0.0/16 -j ACCEPT\n-A FLANNEL-FWD -d 10.10.0.0/16 -j ACCEPT\nCOMMIT\n" +
			"*nat\n:FLANNEL-POSTRTG - [0:0]\n:CNI-HOSTPORT-DNAT - [0:0]\n-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n-A CNI-HOSTPORT-DNAT -p tcp --dport 8080 -j DNAT --to 10.10.1.9:80\n" +
			"-A POSTROUTING -j FLANNEL-POSTRTG\n-A FLANNEL-POSTRTG -s 10.10.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE\nCOMMIT\n", nil, nil},
		{"as Calico's without policies", "*raw\n:cali-PREROUTING - [0:0]\n:cali-rpf-skip - [0:0]\n-A PREROUTING -j cali-PREROUTING\n-A cali-PREROUTING -j MARK --set-xmark 0x0/0xf0000\n" +
			"-A cali-PREROUTING -i cali+ -j MARK --set-xmark 0x40000/0x40000\n-A cali-PREROUTING -m mark --mark 0x40000/0x40000 -j cali-rpf-skip\n-A cali-PREROUTING -m mark --mark 0x10000/0x10000 -j ACCEPT\nCOMMIT\n" +
			"*nat\n:cali-POSTROUTING - [0:0]\n-A POSTROUTING -j cali-POSTROUTING\n-A cali-POSTROUTING -s 10.10.0.0/16 ! -d 10.10.0.0/16 -j MASQUERADE\nCOMMIT\n", nil, nil},
	} {
		for _, one := range []struct {
			program string
			tables  []string
		}{{"iptables-legacy", c.legacy}, {"iptables-nft", c.nft}} {
			inNamespace(t, func() {
				load(t, c.rules, one.program+"-restore", "--noflush")
				w, err := NewEdgeWatcher()
				if err != nil {
					t.Error(err)
					return
				}
				defer w.Close()
				found, err := w.FindForEdge(subject)
				if err != nil || len(found) != len(one.tables) {
					t.Errorf("%s, %s: %+v, %v; want one of each of %v", c.name, one.program, found, err, one.tables)
					return
				}
				for i, table := range one.tables {
					if what := found[i].What; !strings.Contains(what, "table "+table) && !strings.Contains(what, "table ip "+table) {
						t.Errorf("%s, %s: %q, want table %s", c.name, one.program, what, table)
					}
				}
			})
		}
	}
}

// kubeProxyRules are as those of kube-proxy in the mode iptables, with a Service that has no endpoint.
const kubeProxyRules = "*filter\n:KUBE-FORWARD - [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-EXTERNAL-SERVICES - [0:0]\n:KUBE-PROXY-FIREWALL - [0:0]\n:KUBE-FIREWALL - [0:0]\n" +
	"-A INPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL\n-A INPUT -j KUBE-FIREWALL\n-A FORWARD -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL\n-A FORWARD -j KUBE-FORWARD\n" +
	"-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES\n-A FORWARD -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES\n" +
	"-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -j DROP\n-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n-A KUBE-PROXY-FIREWALL -d 192.0.2.1 -p tcp --dport 80 -j DROP\n" +
	"-A KUBE-SERVICES -d 192.0.2.1 -p tcp --dport 81 -j REJECT\nCOMMIT\n" +
	"*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-POSTROUTING - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n-A KUBE-SERVICES -d 192.0.2.1 -p tcp --dport 80 -j DNAT --to 10.10.2.2:80\n" +
	"-A POSTROUTING -j KUBE-POSTROUTING\n-A KUBE-POSTROUTING -j MASQUERADE\nCOMMIT\n"

// dockerRules are those of Docker without containers.
const dockerRules = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n:DOCKER - [0:0]\n:DOCKER-ISOLATION-STAGE-1 - [0:0]\n:DOCKER-ISOLATION-STAGE-2 - [0:0]\n:DOCKER-USER - [0:0]\n" +
	"-A FORWARD -j DOCKER-USER\n-A FORWARD -j DOCKER-ISOLATION-STAGE-1\n-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A FORWARD -o docker0 -j DOCKER\n" +
	"-A FORWARD -i docker0 ! -o docker0 -j ACCEPT\n-A FORWARD -i docker0 -o docker0 -j ACCEPT\n-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2\n" +
	"-A DOCKER-ISOLATION-STAGE-1 -j RETURN\n-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP\n-A DOCKER-ISOLATION-STAGE-2 -j RETURN\n-A DOCKER-USER -j RETURN\nCOMMIT\n"

// calicoRules are the part of Calico's that forwarded packets meet, with a policy of one pod (Calico 3.28).
const calicoRules = "*raw\n:cali-PREROUTING - [0:0]\n:cali-rpf-skip - [0:0]\n:cali-from-host-endpoint - [0:0]\n-A PREROUTING -j cali-PREROUTING\n-A cali-PREROUTING -j MARK --set-xmark 0x0/0xf0000\n" +
	"-A cali-PREROUTING -i cali+ -j MARK --set-xmark 0x40000/0x40000\n-A cali-PREROUTING -m mark --mark 0x40000/0x40000 -j cali-rpf-skip\n" +
	"-A cali-PREROUTING -m mark --mark 0x40000/0x40000 -m rpfilter --validmark --invert -j DROP\n-A cali-PREROUTING -m mark --mark 0x0/0x40000 -j cali-from-host-endpoint\n" +
	"-A cali-PREROUTING -m mark --mark 0x10000/0x10000 -j ACCEPT\nCOMMIT\n" +
	"*filter\n:cali-FORWARD - [0:0]\n:cali-from-wl-dispatch - [0:0]\n:cali-to-wl-dispatch - [0:0]\n:cali-tw-1 - [0:0]\n-A FORWARD -j cali-FORWARD\n-A FORWARD -m mark --mark 0x10000/0x10000 -j ACCEPT\n" +
	"-A cali-FORWARD -j MARK --set-xmark 0x0/0xe0000\n-A cali-FORWARD -i cali+ -j cali-from-wl-dispatch\n-A cali-FORWARD -o cali+ -j cali-to-wl-dispatch\n" +
	"-A cali-from-wl-dispatch -j DROP\n-A cali-to-wl-dispatch -o cali1 -g cali-tw-1\n-A cali-to-wl-dispatch -j DROP\n-A cali-tw-1 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n" +
	"-A cali-tw-1 -m conntrack --ctstate INVALID -j DROP\n-A cali-tw-1 -j DROP\nCOMMIT\n"

// firewalld's rules of a zone that accepts nothing from outside (firewalld 1.3), as far as forwarded packets meet them:
// flows that a proxy has translated are accepted. With a rich rule that drops a host it is found.
func TestFirewalldForTheEdge(t *testing.T) {
	subject := EdgeSubject{
		Devices: []Device{{Index: 101, Name: "eth0"}}, Served: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Backends: []netip.Addr{netip.MustParseAddr("10.10.2.2"), netip.MustParseAddr("fd00:10:2::2")},
		ServedPorts: []Ports{{80, 80}}, BackendPorts: []Ports{{8080, 8080}},
	}
	const zone = `table inet firewalld {
	chain mangle_PREROUTING { type filter hook prerouting priority -140; policy accept; jump mangle_PREROUTING_ZONES; }
	chain mangle_PREROUTING_ZONES { iifname "eth0" goto mangle_PRE_public; goto mangle_PRE_public; }
	chain mangle_PRE_public { jump mangle_PRE_public_deny; }
	chain mangle_PRE_public_deny { DENY }
	chain nat_PREROUTING { type nat hook prerouting priority -90; policy accept; jump nat_PRE_public; }
	chain nat_PRE_public { }
	chain nat_POSTROUTING { type nat hook postrouting priority 110; policy accept; oifname "eth0" masquerade; }
	chain filter_PREROUTING { type filter hook prerouting priority 10; policy accept;
		icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept
		meta nfproto ipv6 fib saddr . mark . iif oif missing drop; }
	chain filter_INPUT { type filter hook input priority 10; policy accept; ct state { established, related } accept; ct status dnat accept; iifname "lo" accept; ct state invalid drop; reject with icmpx admin-prohibited; }
	chain filter_FORWARD { type filter hook forward priority 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		ip6 daddr { ::/96, ::ffff:0.0.0.0/96, 2002::/24 } reject with icmpv6 addr-unreachable
		jump filter_FORWARD_ZONES
		reject with icmpx admin-prohibited; }
	chain filter_FORWARD_ZONES { iifname "eth0" goto filter_FWD_public; goto filter_FWD_public; }
	chain filter_FWD_public { reject with icmpx admin-prohibited; }
}`
	for name, c := range map[string]struct{ deny, want string }{
		"default":     {"", ""},
		"a rich rule": {"ip saddr 192.0.2.7 drop;", "nftables rule in chain mangle_PRE_public_deny of table inet firewalld (handle 21): drop"},
	} {
		inNamespace(t, func() {
			load(t, strings.ReplaceAll(zone, "DENY", c.deny), "nft", "-f", "-")
			w, err := NewEdgeWatcher()
			if err != nil {
				t.Error(err)
				return
			}
			defer w.Close()
			found, err := w.FindForEdge(subject)
			got := ""
			for _, one := range found {
				got += one.What
			}
			if err != nil || (got == "") != (c.want == "") || !strings.HasPrefix(got, strings.Split(c.want, " (handle")[0]) || len(found) > 1 {
				t.Errorf("%s: %+v, %v; want %q", name, found, err, c.want)
			}
		})
	}
}

// A function at a hook of which it is not known what it does may drop the edge's packets, too.
func TestFunctionsForTheEdge(t *testing.T) {
	backends := []netip.Addr{netip.MustParseAddr("10.10.2.2")}
	for family, want := range map[uint8]int{familyIPv4: 1, familyIPv6: 0} {
		s := EdgeSubject{Devices: []Device{{Index: 1, Name: "eth0"}}, Backends: backends}
		found, err := s.find([]base{{table: &hookFunction{"BPF program"}, family: family, hook: forward}})
		if err != nil || len(found) != want {
			t.Errorf("family %d: %+v, %v; want %d", family, found, err, want)
		}
	}
}

// Rules of kube-proxy, also what it has left, are found in its three forms; the kubelet's chains are none.
func TestProxiesOfTheNode(t *testing.T) {
	const kubelet = "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n*filter\n:KUBE-FIREWALL - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\n-A INPUT -j KUBE-FIREWALL\n-A OUTPUT -j KUBE-FIREWALL\n" +
		"-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\nCOMMIT\n"
	for _, c := range []struct {
		name, rules, program string
		want                 []string
	}{
		{"nftables mode", "table ip kube-proxy { chain services { }\n }\ntable ip6 kube-proxy { chain services { }\n }\n", "nft -f -", []string{"table ip kube-proxy", "table ip6 kube-proxy"}},
		{"iptables-nft", kubeProxyRules, "iptables-nft-restore", []string{"chains KUBE-* of table ip filter"}},
		{"iptables-legacy", kubeProxyRules, "iptables-legacy-restore", []string{"chains KUBE-* of table filter (iptables-legacy)"}},
		{"the kubelet", kubelet, "iptables-nft-restore", nil},
		{"the kubelet, iptables-legacy", kubelet, "iptables-legacy-restore", nil},
		{"a table of others", "table inet kube-proxy { chain c { }\n }\n", "nft -f -", nil},
	} {
		inNamespace(t, func() {
			load(t, c.rules, strings.Fields(c.program)...)
			w, err := NewEdgeWatcher()
			if err != nil {
				t.Error(err)
				return
			}
			defer w.Close()
			if got, err := w.Proxies(); err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
			}
		})
	}
}
