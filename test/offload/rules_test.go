// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Ports of the server, one for each flow of a test. A client that is translated uses one that is higher by portShift.
const (
	firstPort    = 20000
	portCount    = 200
	portShift    = 10000
	portExcluded = firstPort + portCount + 1 // by a flag
	portHelper   = firstPort + portCount + 2 // for FTP
	portLimited  = firstPort + portCount + 3 // by a rule
	portRefused  = firstPort + portCount + 4 // by a policy
)

// rules are those of flow offload: packets that conntrack finds invalid are dropped, as by kube-proxy's rules; a policy
// admits what it knows; networkPublic is translated to networkTargets, with another port; and what goes to host 3 there
// gets the router's address. Before them each packet that the stack forwards is counted by the port of the server.
func rules() string {
	var b strings.Builder
	last := portRefused
	b.WriteString("table inet probe {\n")
	for port := firstPort; port <= last; port++ {
		fmt.Fprintf(&b, "counter p%d { }\n", port)
	}
	b.WriteString("chain forward { type filter hook forward priority -200;\n")
	for port := firstPort; port <= last; port++ {
		fmt.Fprintf(&b, "th dport %d counter name p%[1]d\nth sport %[1]d counter name p%[1]d\n", port)
	}
	b.WriteString("}\n}\n")
	fmt.Fprintf(&b, `table inet kube {
	counter invalid { }
	ct helper ftp { type "ftp" protocol tcp; }
	chain helper { type filter hook prerouting priority 0;
		tcp dport %[1]d ct helper set "ftp"
	}
	chain forward { type filter hook forward priority 0; policy accept;
		ct state invalid counter name invalid drop
	}
	chain policies { type filter hook forward priority 1; policy drop;
		iifname "x0" udp dport %[2]d-%[3]d drop
		th dport %[4]d limit rate 100000/second accept
		ct state established,related accept
		meta l4proto { icmp, icmpv6 } accept
		th dport %[5]d drop
		th dport %[2]d-%[3]d accept
	}
`, portHelper, firstPort, last, portLimited, portRefused)
	b.WriteString("chain to_targets { type nat hook prerouting priority -100;\n")
	var ports []string
	for port := firstPort; port <= last; port++ {
		ports = append(ports, fmt.Sprintf("%d : %d", port+portShift, port))
	}
	for n := 2; n <= 3; n++ {
		for f, name := range []string{"ip", "ip6"} {
			fmt.Fprintf(&b, "%s daddr %s meta l4proto { tcp, udp } dnat %[1]s to %[3]s : th dport map { %[4]s }\n", name, family(f).address(networkPublic, n), family(f).address(networkTargets, n), strings.Join(ports, ", "))
		}
	}
	b.WriteString("}\nchain to_router { type nat hook postrouting priority 100;\n")
	for f, name := range []string{"ip", "ip6"} {
		fmt.Fprintf(&b, "%s daddr %s masquerade fully-random\n", name, family(f).address(networkTargets, 3))
	}
	b.WriteString("}\n}\n")
	return b.String()
}

// nft applies commands to the router.
func (w *world) nft(commands string) {
	w.t.Helper()
	w.feed("router", commands, "nft", "-f", "-")
}

// counter is how many packets a named counter of the router has.
func (w *world) counter(table, name string) uint64 {
	w.t.Helper()
	var list struct {
		Nftables []struct {
			Counter *struct{ Packets uint64 }
		}
	}
	w.must(json.Unmarshal([]byte(w.run("router", "nft", "-j", "list", "counter", "inet", table, name)), &list))
	for _, o := range list.Nftables {
		if o.Counter != nil {
			return o.Counter.Packets
		}
	}
	w.t.Fatalf("no counter %s in table %s", name, table)
	return 0
}

// onStack is how many packets of a server's port the stack has forwarded.
func (w *world) onStack(port uint16) uint64 {
	w.t.Helper()
	return w.counter("probe", fmt.Sprintf("p%d", port))
}

// wantNoneInvalid checks that conntrack found no packet invalid.
func (w *world) wantNoneInvalid() {
	w.t.Helper()
	if n := w.counter("kube", "invalid"); n > 0 {
		w.t.Errorf("%d packets were invalid", n)
	}
}
