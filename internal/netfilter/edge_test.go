// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// Each case shows by nft and the kernel which rules would drop packets that the edge forwards past them.
func TestRulesForTheEdge(t *testing.T) {
	devices := []Device{{Index: 101, Name: "eth0"}, {Index: 102, Name: "eth1"}}
	backends := []netip.Addr{netip.MustParseAddr("10.10.2.2"), netip.MustParseAddr("fd00:10:2::2")}
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
		{"NAT, and locally received packets", "table ip t { chain c { type nat hook postrouting priority 100; masquerade; }; chain i { type filter hook input priority 0; policy drop; }; }", ""},
	} {
		inNamespace(t, func() {
			if strings.HasPrefix(c.rules, "table netdev") {
				load(t, "link add eth0 type veth peer name eth1\n", "ip", "-batch", "-")
			}
			load(t, strings.ReplaceAll(c.rules, "; ", "\n"), "nft", "-f", "-")
			w, err := NewWatcher()
			if err != nil {
				t.Error(err)
				return
			}
			defer w.Close()
			all, err := w.FindForEdge(devices, backends)
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

// A function at a hook of which it is not known what it does may drop the edge's packets, too.
func TestFunctionsForTheEdge(t *testing.T) {
	backends := []netip.Addr{netip.MustParseAddr("10.10.2.2")}
	for family, want := range map[uint8]int{familyIPv4: 1, familyIPv6: 0} {
		found, err := findForEdge([]Device{{Index: 1, Name: "eth0"}}, backends, []base{{table: &hookFunction{"BPF program"}, family: family, hook: forward}})
		if err != nil || len(found) != want {
			t.Errorf("family %d: %+v, %v; want %d", family, found, err, want)
		}
	}
}
