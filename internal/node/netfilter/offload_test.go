// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/flow"
)

// offloadDevices are a device to clients, one to servers, and a bridge with servers.
var offloadDevices = []Device{{Index: 101, Name: "eth0"}, {Index: 102, Name: "eth1"}, {Index: 103, Name: "br0", Bridge: true}}

// The flows that rules are asked about.
var offloadFlows = []struct {
	name string
	flow flow.Flow
}{
	{"web", flowOf(unix.IPPROTO_TCP, 101, 102, "192.0.2.1:1000 10.0.0.1:80")},
	{"dns", flowOf(unix.IPPROTO_UDP, 101, 102, "192.0.2.1:1001 10.0.0.1:53")},
	{"dnat", flowOf(unix.IPPROTO_TCP, 101, 102, "192.0.2.1:1002 203.0.113.1:443 192.0.2.1:1002 10.0.0.1:8443")},
	{"snat", flowOf(unix.IPPROTO_TCP, 102, 101, "10.0.0.2:1003 198.51.100.1:80 203.0.113.1:30000 198.51.100.1:80")},
	{"six", flowOf(unix.IPPROTO_TCP, 101, 102, "[2001:db8::1]:1004 [fd00::1]:80")},
	{"bridge", flowOf(unix.IPPROTO_TCP, 101, 103, "192.0.2.1:1005 10.1.0.1:80")},
}

// flowOf: source and destination as packets arrive, and as they leave if these are others.
func flowOf(protocol uint8, in, out int, ends string) flow.Flow {
	f := flow.Flow{InDevice: in, OutDevice: out}
	var all []netip.AddrPort
	for _, end := range strings.Fields(ends) {
		all = append(all, netip.MustParseAddrPort(end))
	}
	f.In = flow.Tuple{Source: all[0], Destination: all[1], Protocol: protocol}
	f.Out = f.In
	if len(all) == 4 {
		f.Out.Source, f.Out.Destination = all[2], all[3]
	}
	return f
}

const everyFlow = "web dns dnat snat six bridge"

// offloadCases are the rules of a chain "c" of a table inet "t" at forward, if they do not name a table; what is
// found, and about which flows.
var offloadCases = []struct{ name, rules, want string }{
	{"counters, and decisions alike for all packets of a flow", "counter; ip saddr 10.9.0.0/16 drop; ct state invalid drop; ip saddr . tcp dport { 10.0.0.1 . 80 } drop; fib saddr . iif oif missing drop; counter name total", ""},
	{"policy", "table inet t { chain c { type filter hook forward priority 0; policy drop; }; }", ""},
	{"limit", "limit rate 5/second accept", everyFlow + ": limit"},
	{"after established packets were accepted", "ct state established,related accept; limit rate 5/second log; ip dscp set 3", ""},
	{"map of states", "ct state vmap { established : accept, related : accept }; limit rate 5/second drop", ""},
	{"new packets", "ct state new limit rate 5/second log; ct state new,untracked ip dscp set 3", ""},
	{"established TCP only", "ct state established meta l4proto tcp accept; log", "dns: log"},
	{"quota of one port", "tcp dport 80 quota over 1000 mbytes drop", "web snat six bridge: quota\n: drop"},
	{"quota of a port before DNAT", "tcp dport 443 quota over 1000 mbytes", ": quota"},
	{"port after DNAT", "tcp dport 8443 quota over 1000 mbytes", "dnat: quota"},
	{"port before DNAT", "table inet t { chain c { type filter hook prerouting priority -150; tcp dport 443 log; tcp dport 8443 log; }; }", "dnat: log\n: log"},
	{"source before SNAT", "table inet t { chain c { type filter hook postrouting priority 0; ip saddr 10.0.0.2 log; ip saddr 203.0.113.1 ip dscp set 1; }; }", "snat: log\n: change of a header"},
	{"source after SNAT", "table inet t { chain c { type filter hook postrouting priority 300; ip saddr 203.0.113.1 log; }; }", "dnat snat: log"},
	{"replies", "tcp sport 8443 log", "dnat: log"},
	{"source port of a range", "tcp sport 1000-1002 tcp dport != 80 log", "dnat: log"},
	{"number of connections", "meta l4proto tcp ct count over 3 reject", "web dnat snat six bridge: connlimit\n: reject"},
	{"set that packets update", "udp dport 53 update @seen { ip saddr }", "dns: update of set seen"},
	{"set that packets fill", "ip saddr @seen drop", "web dns dnat snat bridge: drop"},
	{"set whose elements time out", "ip saddr @brief accept; drop", "web dns dnat snat bridge: drop"},
	{"set of intervals whose elements time out", "ip saddr @briefly accept; drop", "web dns dnat snat bridge: drop"},
	{"map of intervals whose elements time out", "ip saddr vmap @decide", "web dns dnat snat bridge: drop"},
	{"set that only changes of the rules change", "ip saddr @fixed accept; drop", ""},
	{"length", "tcp dport 53 meta length > 1400 drop; udp dport 53 meta length > 1400 drop", ": drop\ndns: drop"},
	{"length, without effect", "meta length > 1400 counter; drop", ""},
	{"length, then accepted", "meta length < 1400 accept; ip daddr 10.0.0.1 drop", "web dns dnat: drop"}, // snat: 10.0.0.2
	{"limit of one port, before a test that is not known", "tcp dport 8443 limit rate 1/second accept; ip saddr . tcp sport { 192.0.2.1 . 7 } drop", "dnat: limit\n: drop"},
	{"time of day", "meta hour >= \"22:00\" drop", everyFlow + ": drop"},
	{"bytes of the flow", "ct original bytes > 1000000 drop", everyFlow + ": drop"},
	{"header", "tcp dport 80 ip dscp set 3; udp dport 53 ip ttl set 9", "web snat bridge: change of a header\ndns: change of a header"},
	{"class of traffic", "oifname eth1 meta priority set 1:2; ip6 dscp ef drop", "web dns dnat snat six: priority\n: drop"},
	{"packets that open connections", "tcp flags syn tcp option maxseg size set rt mtu; tcp flags & (fin|syn|rst|ack) == syn limit rate 1/second drop; tcp flags { syn, syn|ack } log; tcp option maxseg size set 1300", ""},
	{"flags of other packets", "tcp flags psh log; tcp flags & (fin|psh) == 0 log", "web dnat snat six bridge: log\n: log"},
	{"mark", "iifname br0 meta mark set 5", "bridge: mark"},
	{"mark that is restored", "tcp dport 53 ct mark set 1; udp dport 53 meta mark set ct mark", "dns: mark"},
	{"mark of the connection", "ct mark set 5; ct mark set meta mark; ct helper set \"help\"; ct mark 7 drop", ""},
	{"tproxy", "table inet t { chain c { type filter hook prerouting priority -150; tcp dport 80 tproxy to :9; }; }", "web snat six bridge: tproxy"},
	{"synproxy", "tcp dport 8443 synproxy", "dnat: synproxy"},
	{"before conntrack", "table inet t { chain c { type filter hook prerouting priority -300; ct state established accept; limit rate 1/second drop; }; }", everyFlow + ": limit\n: drop"},
	{"NAT", "table ip t { chain c { type nat hook postrouting priority 100; limit rate 1/second masquerade; }; }", ""},
	{"input, output", "table ip t { chain c { type filter hook input priority 0; limit rate 1/second drop; }; chain d { type filter hook output priority 0; log; }; }", ""},
	{"another device", "iifname ppp0 log", ""},
	{"out device", "oifname eth1 iifname br0 log; iifname br0 log", ": log\nbridge: log"},
	{"ingress of a device", "table netdev t { chain c { type filter hook ingress device eth1 priority 0; limit rate 1/second drop; }; }", "web dns dnat snat six: limit\n: drop"},
	{"egress, which the kernel skips for what a program redirects", "table netdev t { chain c { type filter hook egress device eth1 priority 0; log; }; }", "web dns dnat snat six: log"},
	{"bridge", "table bridge t { chain c { type filter hook output priority 0; log; }; chain d { type filter hook forward priority 0; log; }; }", "hardware bridge: log"},
	{"labels of the connection", "ct label 7 drop", everyFlow + ": drop"},
	{"bridge, one protocol", "table bridge t { chain c { type filter hook output priority 0; udp dport 53 drop; ip protocol udp log; tcp dport 80 drop; }; }", ": drop\nbridge: drop\nhardware: log"},
	{"own table", "table inet own { chain c { type filter hook forward priority 0; limit rate 1/second log; }; }", ""},
	{"kube-proxy's table", "table ip kube-proxy { chain c { type filter hook forward priority 0; log; }; }", ""},
}

// tableOfOffloadCase is where the rules of a case are, with what they refer to.
const tableOfOffloadCase = `table inet t {
	set seen { type ipv4_addr; size 16; flags dynamic; }
	set brief { type ipv4_addr; timeout 1h; elements = { 192.0.2.1 }; }
	set briefly { type ipv4_addr; flags interval,timeout; elements = { 192.0.2.0/24 timeout 1h, 198.51.100.0/24 }; }
	map decide { type ipv4_addr : verdict; flags interval,timeout; elements = { 192.0.2.0/24 timeout 1h : drop }; }
	set fixed { type ipv4_addr; elements = { 192.0.2.1 }; }
	ct helper help { type "ftp" protocol tcp; }
	counter total { }
	chain c { type filter hook forward priority 0; %s; }
}`

// Each case shows by nft and the kernel which flows of flow offload rules concern.
func TestRulesForTheOffload(t *testing.T) {
	for _, c := range offloadCases {
		inNamespace(t, func() {
			rules := c.rules
			if strings.HasPrefix(rules, "table netdev") {
				load(t, "link add eth1 type veth peer name eth0\n", "ip", "-batch", "-")
			}
			if !strings.HasPrefix(rules, "table") {
				rules = fmt.Sprintf(tableOfOffloadCase, rules)
			}
			load(t, strings.ReplaceAll(rules, "; ", "\n"), "nft", "-f", "-")
			if got := foundForOffload(t); got != c.want {
				t.Errorf("%s: found\n%s\nwant\n%s", c.name, got, c.want)
			}
		})
	}
}

func foundForOffload(t *testing.T) string {
	t.Helper()
	w, err := NewWatcher("inet own")
	if err != nil {
		t.Error(err)
		return ""
	}
	defer w.Close()
	found, err := w.Find(offloadDevices)
	if err != nil {
		t.Error(err)
		return ""
	}
	for _, one := range offloadFlows {
		unknown := one.flow
		unknown.InDevice, unknown.OutDevice = 0, 0
		if found.About(one.flow) != nil && found.About(unknown) == nil {
			t.Errorf("%s: nothing is found about the flow if its devices are not known", one.name)
		}
	}
	return describeFindings(found)
}

// It is known whether rules decide by routes, of which a change may change what they decide.
func TestRulesThatReadRoutes(t *testing.T) {
	for rules, want := range map[string]bool{
		"fib saddr . iif oif missing drop": true, "fib daddr type local drop": true, "rt classid 7 drop": true, "meta rtclassid 7 drop": true,
		"rt classid . tcp dport { 7 . 80 } drop": true, "ip saddr 10.0.0.1 drop": false, "tcp flags syn tcp option maxseg size set rt mtu": false,
	} {
		inNamespace(t, func() {
			load(t, "table ip t {\nchain c {\ntype filter hook forward priority 0\n"+rules+"\n}\n}\n", "nft", "-f", "-")
			w, err := NewWatcher()
			if err != nil {
				t.Error(err)
				return
			}
			defer w.Close()
			if found, err := w.Find(offloadDevices); err != nil || found.Routes != want {
				t.Errorf("%s: %+v, %v; want %t", rules, found, err, want)
			}
		})
	}
}

// describeFindings returns a line for each: the flows that it is the first about, and what it is.
func describeFindings(found *Findings) string {
	var lines []string
	for i := range found.All {
		f := &found.All[i]
		var names []string
		if f.Hardware {
			names = append(names, "hardware")
		}
		for _, one := range offloadFlows {
			if found.AboutInHardware(one.flow) == f && (found.About(one.flow) == f) != f.Hardware {
				names = append(names, one.name)
			}
		}
		lines = append(lines, strings.Join(names, " ")+": "+whatOf.ReplaceAllString(f.What, ""))
	}
	return strings.Join(lines, "\n")
}

// whatOf matches the place of a rule, with the number by which its chain lists it.
var whatOf = regexp.MustCompile(`^.* in chain \S+ of table (\S+ )?\S+ \((handle|number) \d+\): |^.* policy in chain .*: `)

// offloadTables are rules that iptables writes to nf_tables, and about which flows something is found.
var offloadTables = []struct{ name, rules, want string }{
	{"established first", "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A FORWARD -m limit --limit 3/min -j LOG\nCOMMIT\n", ""},
	{"limits", "*filter\n-A FORWARD -p tcp -m hashlimit --hashlimit-above 100/sec --hashlimit-name h -j DROP\n-A FORWARD -p udp --dport 53 -m limit --limit 3/min -j ACCEPT\nCOMMIT\n", "web dnat snat bridge: hashlimit\n: DROP\ndns: limit"},
	{"connections of a client", "*filter\n-A FORWARD -p tcp --syn -m connlimit --connlimit-above 3 -j REJECT\n-A FORWARD -p tcp --dport 8443 -m connlimit --connlimit-above 3 -j REJECT\nCOMMIT\n", "dnat: connlimit\n: REJECT"},
	{"translated flows", "*filter\n-A FORWARD -m conntrack --ctstate DNAT -m quota --quota 1000 -j ACCEPT\nCOMMIT\n", "web dns dnat snat bridge: quota"},
	{"several ports", "*mangle\n-A FORWARD -p tcp -m multiport --dports 80,8000:8999 -j DSCP --set-dscp 3\n-A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu\n-A FORWARD -p udp -m multiport ! --dports 1:52 -j TEE --gateway 10.0.0.9\nCOMMIT\n", "web dnat snat bridge: DSCP\ndns: TEE"},
	{"content", "*filter\n-A FORWARD -p tcp --dport 8443 -m string --string x --algo bm -j DROP\nCOMMIT\n", "dnat: DROP"},
	{"addresses of the node", "*mangle\n-A PREROUTING -m addrtype --dst-type LOCAL -p tcp --dport 443 -j MARK --set-mark 1\n-A FORWARD -m addrtype --dst-type LOCAL -j TTL --ttl-set 1\nCOMMIT\n", "dnat: MARK"},
}

func TestTablesForTheOffload(t *testing.T) {
	for _, c := range offloadTables {
		inNamespace(t, func() {
			load(t, c.rules, "iptables-nft-restore")
			if got, want := strings.ToLower(foundForOffload(t)), strings.ToLower(c.want); got != want {
				t.Errorf("%s: found\n%s\nwant\n%s", c.name, got, want)
			}
		})
	}
}

// Rules of iptables-legacy keep all flows of their family on the stack, but not those of its NAT, which established
// packets do not meet.
func TestLegacyForTheOffload(t *testing.T) {
	const established = "-m conntrack --ctstate ESTABLISHED -j ACCEPT\nCOMMIT\n"
	for _, c := range []struct{ tool, rules, want string }{
		{"iptables-legacy-restore", "*filter\n-A FORWARD " + established, "web dns dnat snat bridge: iptables-legacy rules in chain FORWARD of table filter" + notSearched},
		{"ip6tables-legacy-restore", "*mangle\n-A POSTROUTING " + established, "six: ip6tables-legacy rules in chain POSTROUTING of table mangle" + notSearched},
		{"iptables-legacy-restore", "*nat\n-A POSTROUTING -j MASQUERADE\nCOMMIT\n", ""},
		{"iptables-legacy-restore", "*filter\n:FORWARD DROP [0:0]\n-A INPUT -j DROP\nCOMMIT\n", ""}, // forwards nothing that could be learned
	} {
		inNamespace(t, func() {
			load(t, c.rules, c.tool)
			if got := foundForOffload(t); got != c.want {
				t.Errorf("%q: found\n%s\nwant\n%s", c.rules, got, c.want)
			}
		})
	}
}

// A fakeTable has one chain. Its rules need modules that not every kernel for tests has.
type fakeTable []rule

func (t fakeTable) rules(string) ([]rule, error)    { return t, nil }
func (t fakeTable) title(part, chain string) string { return part }

// Rules that divert packets, and those of a bridge to which packets of the flow cache come without conntrack entry.
func TestRulesOfModules(t *testing.T) {
	queue := translated(t, "queue")
	accepted := rule{steps: []step{testStates(ctEstablished), verdict{kind: accept}}}
	dropped := rule{steps: []step{verdict{kind: drop, what: "drop"}}}
	for name, c := range map[string]struct {
		base base
		want string
	}{
		"queue":                   {base{table: fakeTable{queue}, family: familyInet, hook: forward}, everyFlow + ": rule: queue"},
		"queue, after acceptance": {base{table: fakeTable{accepted, queue}, family: familyInet, hook: forward}, ""},
		"NFQUEUE":                 {base{table: fakeTable{{steps: xtTarget("NFQUEUE", 3, nil)}}, family: familyIPv6, hook: forward}, "six: rule: NFQUEUE"},
		"set of ipset":            {base{table: fakeTable{{steps: append(xtMatch("set", 4, nil), dropped.steps...)}}, family: familyIPv6, hook: forward}, "six: rule: drop"},
		"bridge with conntrack":   {base{table: fakeTable{accepted, dropped}, family: familyBridge, hook: bridgeOutput}, "bridge: rule: drop"},
	} {
		found, err := findForOffload(offloadDevices, []base{c.base})
		if err != nil {
			t.Fatal(err)
		}
		if got := describeFindings(found); got != c.want {
			t.Errorf("%s: found\n%s\nwant\n%s", name, got, c.want)
		}
	}
}

// translated returns the rule that an expression without attributes is.
func translated(t *testing.T, name string) rule {
	t.Helper()
	expression := nl.NewRtAttr(unix.NFTA_LIST_ELEM, nil)
	expression.AddRtAttr(unix.NFTA_EXPR_NAME, []byte(name))
	r, err := (&nftTable{}).translate(string(expression.Serialize()))
	if err != nil {
		t.Fatal(err)
	}
	return r
}
