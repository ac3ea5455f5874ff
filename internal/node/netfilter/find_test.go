// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"fmt"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// subject is a node with two pods that have routes, and two behind a bridge.
func subject() Subject {
	bridge := &Master{Index: 110, Name: "cni0", Bridge: true}
	addresses := func(n int) []netip.Addr {
		return []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.10.1.%d", n)), netip.MustParseAddr(fmt.Sprintf("fd00:10:1::%d", n))}
	}
	return Subject{
		Networks: []netip.Prefix{netip.MustParsePrefix("10.10.0.0/16"), netip.MustParsePrefix("fd00:10::/32")},
		Devices: []Device{
			{Index: 101, Name: "cali1", Pods: addresses(2)}, {Index: 102, Name: "cali2", Pods: addresses(3)},
			{Index: 103, Name: "veth3", Master: bridge, Pods: addresses(4)}, {Index: 104, Name: "veth4", Master: bridge, Pods: addresses(5)},
			{Index: 105, Name: "eth0", Uplink: true},
		},
	}
}

// inNamespace runs a test in a network namespace of its own.
func inNamespace(t testing.TB, test func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			test()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// load has a tool read rules.
func load(t testing.TB, rules string, argv ...string) {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v: %s", strings.Join(argv, " "), err, out)
	}
}

// found describes findings: the devices, by their index without 100, and what it is.
func found(t *testing.T, f *Finder, s Subject) string {
	t.Helper()
	all, err := f.Find(s)
	if err != nil {
		t.Error(err)
	}
	var lines []string
	for _, one := range all {
		names := ""
		for _, index := range one.Devices {
			names += fmt.Sprint(index - 100)
		}
		if one.Marks != 0 {
			names = fmt.Sprintf("%s marks %#x", names, one.Marks)
		}
		if one.Invalid {
			names += " invalid"
		}
		lines = append(lines, names+" "+strings.NewReplacer("nftables ", "", "in chain ", "", "of table ", "").Replace(one.What))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// nftCases are the rules of a chain "c" of a table inet "t" at forward, if they do not name a table.
var nftCases = []struct{ name, rules, want string }{
	{"no effect", "counter; ct state invalid drop; ip saddr 10.10.0.0/16 accept; meta nftrace set 1", "1234 invalid rule c inet t: drop"},
	{"drop all", "drop", "1234 rule c inet t: drop"},
	{"reject, log", "log; ip6 saddr fd00:10:1::2 reject", "1 rule c inet t: reject\n1234 rule c inet t: log"},
	{"established only", "ct state established,related accept; drop", "1234 invalid rule c inet t: drop\n1234 rule c inet t: drop"},
	{"all states", "ct state established,related accept; ct state new accept; ct state untracked accept; drop", "1234 invalid rule c inet t: drop"},
	{"map of states", "ct state vmap { established : accept, related : accept, new : accept, untracked : accept }; drop", "1234 invalid rule c inet t: drop"},
	{"state other than invalid", "ct state != invalid accept; drop", "1234 invalid rule c inet t: drop"},
	{"invalid or new", "ct state invalid,new drop", "1234 invalid rule c inet t: drop\n1234 rule c inet t: drop"},
	{"invalid, of one pod", "iifname cali1 ct state invalid drop", "1 invalid rule c inet t: drop"},
	{"invalid, in a chain that rejects", "ct state invalid jump d", "1234 invalid rule d inet t: reject"},
	{"invalid, logged and accepted", "ct state invalid log; ct state invalid accept; ct state invalid drop", ""},
	{"invalid, behind an accepted network", "ip saddr 10.10.0.0/16 accept; ip6 saddr fd00:10::/32 accept; ct state invalid drop", "1234 invalid rule c inet t: drop"}, // of clients outside
	{"invalid, which are marked", "ct state invalid meta mark set 5; meta mark 5 drop", "1234 invalid rule c inet t: drop"},
	{"state that is not read by what drops", "ip saddr 10.12.0.0/16 ip daddr 10.12.0.0/16 ct state invalid drop; ip saddr 10.10.1.2 drop", "1 rule c inet t: drop"},
	{"policy", "table ip t { chain c { type filter hook forward priority 0; policy drop; }; }", "1234 policy c ip t: drop"},
	{"policy, but pods accepted", "table inet t { chain c { type filter hook forward priority 0; policy drop; ip saddr 10.10.0.0/16 accept; ip daddr 10.10.0.0/16 accept; ip6 saddr fd00:10::/32 accept; ip6 daddr fd00:10::/32 accept; }; }", ""},
	{"policy, but pods of one half accepted", "table ip t { chain c { type filter hook forward priority 0; policy drop; ip saddr 10.10.128.0/17 accept; ip daddr 10.10.128.0/17 accept; }; }", "1234 policy c ip t: drop"},
	{"policy, but pods accepted by halves", "table ip t { chain c { type filter hook forward priority 0; policy drop; ip daddr 10.10.128.0/17 accept; ip saddr 10.10.0.0/16 accept; ip daddr 10.10.0.0/17 accept; }; }", ""},
	{"policy, but pods among themselves accepted", "table ip t { chain c { type filter hook forward priority 0; policy drop; ip saddr 10.10.0.0/16 ip daddr 10.10.0.0/16 accept; }; }", "1234 policy c ip t: drop"}, // not clients outside
	{"accept in another base chain", "table ip t { chain c { type filter hook forward priority 0; drop; }; chain a { type filter hook forward priority -1; accept; }; }", "1234 rule c ip t: drop"},
	{"input only", "table ip t { chain c { type filter hook input priority 0; policy drop; }; }", ""},
	{"dormant", "table ip t { flags dormant; chain c { type filter hook forward priority 0; policy drop; }; }", ""},
	{"one device", "iifname cali1 drop", "1 rule c inet t: drop"},
	{"one device, out", "oifname cali2 drop", "2 rule c inet t: drop"},
	{"wildcard", "iifname \"cali*\" drop", "12 rule c inet t: drop"},
	{"not wildcard", "iifname != \"cali*\" oifname cali2 drop", "2 rule c inet t: drop"},
	{"set of devices", "iifname { cali1, lo } drop", "1 rule c inet t: drop"},
	{"set of wildcards", "iifname { \"cali*\", eth7 } drop", "12 rule c inet t: drop"},
	{"map of devices", "iifname vmap { cali1 : drop, \"docker*\" : drop, * : accept }", "1 rule c inet t: drop"},
	{"bridge", "iifname cni0 drop", "34 rule c inet t: drop"},
	{"port of a bridge, which is not routed", "iifname veth3 drop", ""},
	{"uplink", "iifname eth0 drop", "1234 rule c inet t: drop"},
	{"uplink to one", "iifname eth0 oifname cali2 drop", "2 rule c inet t: drop"},
	{"other devices", "iifname docker0 drop; oifname ppp0 tcp flags syn tcp option maxseg size set rt mtu", ""},
	{"index of no device", "iif lo drop", ""},
	{"clamped MSS", "tcp flags syn tcp option maxseg size set rt mtu", "1234 rule c inet t: change of a header option"},
	{"addresses", "ip saddr 10.10.1.2 drop", "1 rule c inet t: drop"},
	{"addresses of others", "ip saddr 10.11.0.0/16 ip daddr 10.12.0.0/16 drop", ""},
	{"two tests of one field", "ip saddr 10.10.1.0/24 ip saddr 10.10.1.2 accept; ip saddr 10.10.1.2 drop", ""},
	{"clients outside", "ip saddr 192.0.2.0/24 drop", "1234 rule c inet t: drop"},
	{"clients outside by devices of pods", "ip saddr 192.0.2.0/24 iifname cali1 drop", ""},
	{"range", "iifname \"cali*\" ip saddr 10.10.1.0-10.10.1.2 drop", "1 rule c inet t: drop"},
	{"not range", "ip saddr != 10.10.0.0-10.10.255.255 ip daddr 10.12.0.0/16 drop", ""},
	{"odd mask", "ip saddr & 0.0.0.255 == 0.0.0.2 drop", "1234 rule c inet t: drop"},
	{"set of networks", "ip saddr { 10.10.1.2, 10.12.0.0/16 } iifname \"cali*\" drop", "1 rule c inet t: drop"},
	{"map of addresses", "ip daddr vmap { 10.10.1.3 : drop, 10.10.1.4-10.10.1.5 : jump d }", "2 rule c inet t: drop\n34 rule d inet t: reject"},
	{"set of two fields", "ip saddr . ip daddr { 10.12.0.1 . 10.12.0.2 } drop", "1234 rule c inet t: drop"},
	{"set that packets fill", "add @seen { ip saddr }; ip saddr @seen drop", "1234 rule c inet t: drop"},
	{"protocol without shortcut", "meta l4proto { esp, sctp } drop; ip protocol igmp drop", ""},
	{"protocols", "meta l4proto { tcp, udp } accept; ip protocol icmp accept; ip6 nexthdr icmpv6 accept; drop", ""},
	{"one protocol", "udp dport 53 drop", "1234 rule c inet t: drop"},
	{"one family", "meta nfproto ipv6 drop; ip saddr 10.12.0.0/16 ip daddr 10.12.0.0/16 drop", "1234 rule c inet t: drop"},
	{"return", "jump e", ""},
	{"goto", "goto d", "1234 rule d inet t: reject"},
	{"goto ends the chain", "ct state new,established,related,untracked goto f; drop", "1234 invalid rule c inet t: drop"},
	{"jump that accepts some", "iifname cali1 jump f; drop", "1234 rule c inet t: drop"},
	{"mark that nobody sets", "meta mark 5 drop; meta mark & 0x10 == 0x10 drop; ct mark 1 drop", ""},
	{"mark that is set", "iifname cali1 meta mark set 5; meta mark 5 drop", "1 marks 0x5 rule c inet t: mark\n1234 rule c inet t: drop"},
	{"mark that nobody reads", "iifname cali1 meta mark set 5; iifname cali2 meta mark set meta mark or 0x10; meta mark & 0x20 == 0x20 drop; meta mark 0x8 drop", "12 marks 0x15 rule c inet t: mark"},
	{"mark that is reset", "meta mark set 0x10; meta mark & 0x10 == 0 drop; meta mark set meta mark and 0xf; meta mark != 0 drop", "1234 marks 0x10 rule c inet t: mark"},
	{"mark of an earlier chain", "table inet t { chain a { type filter hook prerouting priority 0; meta mark set 0x10; }; chain c { type filter hook forward priority 0; meta mark 0x20 drop; meta mark 0x10 drop; }; }", "1234 marks 0x10 rule a inet t: mark\n1234 rule c inet t: drop"},
	{"mark of a chain with the same priority", "table inet t { chain c { type filter hook forward priority 0; meta mark 0x10 drop; }; chain a { type filter hook forward priority 0; meta mark set 0x10; }; }", "1234 marks 0x10 rule a inet t: mark\n1234 rule c inet t: drop"},
	{"mark of a later chain", "table inet t { chain c { type filter hook forward priority 0; meta mark 0x10 drop; }; chain a { type filter hook postrouting priority 0; meta mark set 0x10; }; }", "1234 marks 0x10 rule a inet t: mark"},
	{"mark that is kept", "meta mark set meta mark & 0xff; ct mark set meta mark; meta mark set ct mark", ""},
	{"local destination", "fib daddr type local drop; fib daddr type { broadcast, multicast } drop; ct status dnat drop", ""},
	{"reverse path", "table inet t { chain c { type filter hook prerouting priority -300; iifname \"cali*\" fib saddr . iif oif 0 drop; }; }", ""},
	{"reverse path of uplinks", "table inet t { chain c { type filter hook prerouting priority -300; fib saddr . iif oif missing drop; }; }", "1234 rule c inet t: drop"},
	{"invalid, before conntrack", "table inet t { chain c { type filter hook prerouting priority -300; ct state invalid drop; }; }", "1234 rule c inet t: drop"},
	{"invalid, maybe before conntrack", "table inet t { chain c { type filter hook prerouting priority -200; ct state invalid drop; }; }", "1234 rule c inet t: drop"},
	{"invalid, after conntrack", "table inet t { chain c { type filter hook prerouting priority -199; ct state invalid drop; }; }", "1234 invalid rule c inet t: drop"},
	{"other states, before conntrack", "table inet t { chain c { type filter hook prerouting priority -300; ct state new,established,related,untracked accept; drop; }; }", "1234 rule c inet t: drop"},
	{"connection mark, before conntrack", "table inet t { chain c { type filter hook prerouting priority -300; ct mark 0 accept; ct mark != 1 accept; drop; }; }", "1234 rule c inet t: drop"},
	{"connection mark, after conntrack", "table inet t { chain c { type filter hook prerouting priority -150; ct state untracked accept; ct mark 0 accept; drop; }; }", "1234 invalid rule c inet t: drop"},
	{"connection mark of what has none", "table inet t { chain c { type filter hook prerouting priority -150; ct mark 0 accept; drop; }; }", "1234 invalid rule c inet t: drop\n1234 rule c inet t: drop"},
	{"type of an address from a device", "ip6 saddr fd00:10:1::2 fib saddr . iif type unreachable drop; ip saddr 10.10.1.3 fib saddr . iif type unreachable drop", "1 rule c inet t: drop"},
	{"limit", "limit rate 5/second drop", "1234 rule c inet t: drop"},
	{"change of TOS", "ip dscp set 3", "1234 rule c inet t: change of a header"},
	{"masquerade of what leaves", "table ip t { chain c { type nat hook postrouting priority 100; ip saddr 10.10.0.0/16 ip daddr != 10.10.0.0/16 masquerade; }; }", ""},
	{"masquerade of all", "table ip t { chain c { type nat hook postrouting priority 100; oifname eth0 masquerade; }; }", "1234 rule c ip t: masquerade"},
	{"DNAT", "table ip t { chain c { type nat hook prerouting priority -100; ip daddr 192.0.2.1 dnat to 10.10.1.2; }; }", ""},
	{"bridge family", "table bridge t { chain c { type filter hook forward priority 0; ip saddr 10.10.1.4 drop; }; }", "3 rule c bridge t: drop"},
	{"port of a bridge", "table bridge t { chain c { type filter hook prerouting priority 0; iifname veth3 drop; }; }", "3 rule c bridge t: drop"},
	{"bridge family, other frames", "table bridge t { chain c { type filter hook forward priority 0; ether type arp drop; }; }", ""},
	{"ingress of a device", "table netdev t { chain c { type filter hook ingress device cali1 priority 0; policy drop; }; }", "1 policy c netdev t: drop"},
	{"egress of a device", "table netdev t { chain c { type filter hook egress device cali1 priority 0; ip saddr 10.10.1.3 drop; }; }", "2 rule c netdev t: drop"},
	{"egress of the uplink, which the kernel skips for what a program redirects", "table netdev t { chain c { type filter hook egress device eth0 priority 0; ip saddr 10.10.1.2 drop; }; }", "1 rule c netdev t: drop"},
	{"egress of another device", "table netdev t { chain c { type filter hook egress device lo priority 0; drop; }; }", ""},
	{"kube-proxy's table", "table ip kube-proxy { chain c { type filter hook forward priority 0; drop; }; }", ""},
}

// tableOfCase is where the rules of a case are, with chains that they call.
const tableOfCase = `table inet t {
	set seen { type ipv4_addr; size 16; flags dynamic; }
	chain d { reject; }
	chain e { iifname cali1 return; return; drop; }
	chain f { accept; }
	chain c { type filter hook forward priority 0; %s; }
}`

// Each case shows by the real tools and the real kernel whom rules of nftables concern.
func TestNFTables(t *testing.T) {
	for _, c := range nftCases {
		inNamespace(t, func() {
			rules := c.rules
			if strings.HasPrefix(rules, "table netdev") {
				load(t, "link add cali1 type veth peer name eth0\n", "ip", "-batch", "-")
			}
			if !strings.HasPrefix(rules, "table") {
				rules = fmt.Sprintf(tableOfCase, rules)
			}
			load(t, strings.ReplaceAll(rules, "; ", "\n"), "nft", "-f", "-")
			if got := found(t, &Finder{}, subject()); got != c.want {
				t.Errorf("%s: found\n%s\nwant\n%s", c.name, got, c.want)
			}
		})
	}
}

// iptablesCases are input of iptables-restore. "rule" and "policy" stand for what the variant's name is before.
var iptablesCases = []struct{ name, rules, want string }{
	{"INVALID", "*filter\n-A FORWARD -m conntrack --ctstate INVALID -j DROP\n-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT\nCOMMIT\n", "1234 invalid rule FORWARD filter: DROP"},
	{"NEW", "*filter\n-A FORWARD -m conntrack --ctstate NEW -j DROP\nCOMMIT\n", "1234 rule FORWARD filter: DROP"},
	{"not by state", "*filter\n-A FORWARD -m conntrack ! --ctstate INVALID -j ACCEPT\n-A FORWARD -j DROP\nCOMMIT\n", "1234 invalid rule FORWARD filter: DROP"},
	{"Docker", "*filter\n:FORWARD DROP [0:0]\n:DOCKER-USER - [0:0]\n-A FORWARD -j DOCKER-USER\n-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A FORWARD -i docker0 ! -o docker0 -j ACCEPT\n-A DOCKER-USER -j RETURN\nCOMMIT\n", "1234 policy FORWARD filter: DROP"},
	{"marks", "*mangle\n-A PREROUTING -i cali1 -j MARK --set-xmark 0x10/0x10\nCOMMIT\n*filter\n-A FORWARD -m mark --mark 0x10/0x10 -j DROP\nCOMMIT\n", "1 marks 0x10 rule PREROUTING mangle: MARK\n1234 rule FORWARD filter: DROP"},
	{"cleared marks", "*raw\n-A PREROUTING -j MARK --set-xmark 0x0/0xf0000\n-A PREROUTING -m mark --mark 0x40000/0x40000 -j DROP\nCOMMIT\n", ""},
	{"protocols and unknown matches", "*filter\n-A FORWARD -p 4 -j DROP\n-A FORWARD -i cali1 -p udp -m multiport --dports 1,2 -j DROP\n-A FORWARD -i cali2 -m physdev --physdev-in x -j REJECT\nCOMMIT\n", "1 rule FORWARD filter: DROP\n2 rule FORWARD filter: REJECT"},
	{"INVALID in raw", "*raw\n-A PREROUTING -m conntrack --ctstate INVALID -j DROP\nCOMMIT\n", "1234 rule PREROUTING raw: DROP"},
	{"connection mark in raw", "*raw\n-A PREROUTING -m connmark --mark 0 -j ACCEPT\n-A PREROUTING -j DROP\nCOMMIT\n", "1234 rule PREROUTING raw: DROP"},
	{"INPUT", "*filter\n:INPUT DROP [0:0]\n-A INPUT -j REJECT\nCOMMIT\n", ""},
	{"fragments", "*filter\n-A FORWARD -f -j DROP\nCOMMIT\n", ""},
	{"range", "*filter\n-A FORWARD -i cali+ -m iprange --src-range 10.10.1.3-10.10.1.9 -j DROP\nCOMMIT\n", "2 rule FORWARD filter: DROP"},
}

// Each case shows whom rules concern that iptables writes to nf_tables.
func TestIPTables(t *testing.T) {
	title := strings.NewReplacer(" ip ", " ", " drop", " DROP")
	for _, c := range iptablesCases {
		inNamespace(t, func() {
			load(t, c.rules, "iptables-nft-restore")
			if got := title.Replace(found(t, &Finder{}, subject())); got != c.want {
				t.Errorf("%s: found\n%s\nwant\n%s", c.name, got, c.want)
			}
		})
	}
}

// notSearched is what is found about a chain of iptables-legacy with rules.
const notSearched = ": they are not searched, those of iptables-nft are"

// manyChains are chains of users, which iptables-legacy sorts by name before it writes the table.
func manyChains(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, ":c%02d - [0:0]\n", i)
	}
	return b.String()
}

// legacyCases are input of iptables-legacy-restore.
var legacyCases = []struct{ name, rules, want string }{
	{"table without rules", "*filter\nCOMMIT\n*mangle\nCOMMIT\n", ""},
	{"chains of the kubelet", "*mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n*filter\n:KUBE-KUBELET-CANARY - [0:0]\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\n-A OUTPUT -j KUBE-FIREWALL\n-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -j DROP\nCOMMIT\n", ""},
	{"INPUT and OUTPUT", "*filter\n:INPUT DROP [0:0]\n-A INPUT -j REJECT\n-A OUTPUT -j REJECT\nCOMMIT\n*mangle\n-A OUTPUT -j MARK --set-mark 1\nCOMMIT\n", ""},
	{"chain that nothing calls", "*filter\n:other - [0:0]\n-A other -j DROP\nCOMMIT\n", ""},
	{"any rule", "*filter\n-A FORWARD -m conntrack --ctstate INVALID -j DROP\nCOMMIT\n", "1234 iptables-legacy rules FORWARD filter" + notSearched},
	{"rules at each hook", "*raw\n-A PREROUTING -j ACCEPT\nCOMMIT\n*mangle\n-A POSTROUTING -j ACCEPT\nCOMMIT\n*nat\n-A POSTROUTING -j ACCEPT\nCOMMIT\n",
		"1234 iptables-legacy rules POSTROUTING mangle" + notSearched + "\n1234 iptables-legacy rules POSTROUTING nat" + notSearched + "\n1234 iptables-legacy rules PREROUTING raw" + notSearched},
	{"policy", "*filter\n:INPUT DROP [0:0]\n:FORWARD DROP [0:0]\nCOMMIT\n", "1234 iptables-legacy policy FORWARD filter: drop"},
	{"behind 40 chains", "*filter\n" + manyChains(40) + "-A FORWARD -s 10.10.1.2 -j c39\n-A c39 -j DROP\nCOMMIT\n", "1234 iptables-legacy rules FORWARD filter" + notSearched},
	{"policy behind 40 chains", "*filter\n:FORWARD DROP [0:0]\n" + manyChains(40) + "-A c00 -j ACCEPT\n-A INPUT -j c00\nCOMMIT\n", "1234 iptables-legacy policy FORWARD filter: drop"},
}

// Whatever rules of iptables-legacy do that forwarded packets meet, they are a filter, for both families.
func TestLegacy(t *testing.T) {
	for _, c := range legacyCases {
		for tool, title := range map[string]string{"iptables-legacy-restore": "iptables-legacy", "ip6tables-legacy-restore": "ip6tables-legacy"} {
			rules := c.rules
			if title == "ip6tables-legacy" {
				rules = strings.NewReplacer("127.0.0.0/8", "::1", "10.10.1.2", "fd00:10:1::2").Replace(rules)
			}
			inNamespace(t, func() {
				load(t, rules, tool)
				if got, want := found(t, &Finder{}, subject()), strings.ReplaceAll(c.want, "iptables-legacy", title); got != want {
					t.Errorf("%s by %s: found\n%s\nwant\n%s", c.name, tool, got, want)
				}
			})
		}
	}
}

// A Finder finds rules that come and go. Those of iptables-legacy are read again when they are othersAge old.
func TestFinderFollowsChanges(t *testing.T) {
	inNamespace(t, func() {
		f := &Finder{}
		for _, step := range []struct{ tool, rules, want string }{
			{"nft", "add table ip t\nadd chain ip t c { type filter hook forward priority 0; }\nadd rule ip t c drop\n", "1234 rule c ip t: drop"},
			{"nft", "flush chain ip t c\nadd rule ip t c iifname cali1 drop\n", "1 rule c ip t: drop"},
			{"nft", "flush ruleset\n", ""},
			{"iptables-legacy-restore", "*filter\n-A FORWARD -i cali1 -j DROP\nCOMMIT\n", "1234 iptables-legacy rules FORWARD filter" + notSearched},
			{"iptables-legacy-restore", "*filter\n:FORWARD DROP [0:0]\nCOMMIT\n", "1234 iptables-legacy policy FORWARD filter: drop"},
			{"iptables-legacy-restore", "*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n", ""},
		} {
			argv := []string{step.tool}
			if step.tool == "nft" {
				argv = append(argv, "-f", "-")
			}
			load(t, step.rules, argv...)
			f.othersTime = time.Time{}
			if got := found(t, f, subject()); got != step.want {
				t.Errorf("after %q: found\n%s\nwant\n%s", step.rules, got, step.want)
			}
		}
	})
}

// Cases of IPv6 alone.
func TestIP6Tables(t *testing.T) {
	const rules = `*filter
:FORWARD DROP [0:0]
:other - [0:0]
-A FORWARD -s fd00:10:1::2 -p tcp -j REJECT
-A FORWARD -s fd00:11::/32 -d fd00:12::/32 -j DROP
-A FORWARD ! -i cali2 -g other
-A FORWARD -m conntrack --ctstate NEW,ESTABLISHED,RELATED,UNTRACKED -j ACCEPT
-A other -o cali1 -j DROP
-A other -j ACCEPT
COMMIT
`
	inNamespace(t, func() {
		load(t, rules, "ip6tables-nft-restore")
		want := "1 invalid rule FORWARD ip6 filter: REJECT\n1 invalid rule other ip6 filter: drop\n" +
			"1 rule FORWARD ip6 filter: REJECT\n1 rule other ip6 filter: drop\n2 invalid policy FORWARD ip6 filter: drop"
		if got := found(t, &Finder{}, subject()); got != want {
			t.Errorf("found\n%s\nwant\n%s", got, want)
		}
	})
}

// Types of addresses of ip6tables match otherwise than those of iptables, if there are several.
func TestAddressTypes(t *testing.T) {
	for _, c := range []struct{ types, want4, want6 string }{
		{"UNICAST", "", ""},
		{"LOCAL,UNICAST", "", "drop"},
		{"MULTICAST,UNICAST", "", "drop"},
		{"LOCAL", "drop", "drop"},
		{"UNICAST,UNREACHABLE", "", "drop"}, // the latter is not known
	} {
		for _, family := range []struct{ tool, want string }{{"iptables-nft-restore", c.want4}, {"ip6tables-nft-restore", c.want6}} {
			inNamespace(t, func() {
				load(t, "*filter\n-A FORWARD -m addrtype --dst-type "+c.types+" -j ACCEPT\n-A FORWARD -j DROP\nCOMMIT\n", family.tool)
				got := found(t, &Finder{}, subject())
				if (got != "") != (family.want != "") {
					t.Errorf("%s by %s: found %q, want %q", c.types, family.tool, got, family.want)
				}
			})
		}
	}
	inNamespace(t, func() {
		load(t, "*filter\n-A FORWARD -m addrtype ! --src-type LOCAL,UNICAST -j DROP\nCOMMIT\n", "ip6tables-nft-restore")
		if got := found(t, &Finder{}, subject()); got != "1234 rule FORWARD ip6 filter: drop" {
			t.Errorf("inverted: found %q", got)
		}
	})
}

// BenchmarkPolicies searches the rules of 250 pods with a policy each, 10 rules long, as after a change of them.
func BenchmarkPolicies(b *testing.B) {
	s := Subject{Networks: subject().Networks, Devices: []Device{{Index: 1, Name: "eth0", Uplink: true}}}
	var dispatch, chains strings.Builder
	for i := range 250 {
		s.Devices = append(s.Devices, Device{Index: 100 + i, Name: fmt.Sprint("cali", i), Pods: []netip.Addr{netip.AddrFrom4([4]byte{10, 10, 1, byte(i)})}})
		fmt.Fprintf(&dispatch, "iifname cali%d goto p%d\noifname cali%d goto p%d\n", i, i, i, i)
		fmt.Fprintf(&chains, "chain p%d {\n%sdrop\n}\n", i, strings.Repeat("tcp dport 80 accept\n", 10))
	}
	inNamespace(b, func() {
		load(b, "table ip t {\n"+chains.String()+"chain c {\ntype filter hook forward priority 0\n"+dispatch.String()+"}\n}\n", "nft", "-f", "-")
		for b.Loop() {
			if found, err := (&Finder{}).Find(s); err != nil || len(found) != 250 {
				b.Errorf("%d findings, %v", len(found), err)
			}
		}
	})
}
