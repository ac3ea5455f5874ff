// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"net/netip"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// Rules that exempt a destination from conntrack before it is routed are found in nftables and in both iptables, by
// address, protocol and port.
func TestNoTrack(t *testing.T) {
	const tcp, udp = unix.IPPROTO_TCP, unix.IPPROTO_UDP
	const dns, other, dns6 = "10.96.0.10", "10.96.0.11", "fd00:96::a"
	addresses := []netip.Addr{netip.MustParseAddr(dns), netip.MustParseAddr(other), netip.MustParseAddr(dns6)}
	type destination struct {
		address  string
		port     uint16
		protocol uint8
	}
	all := []destination{{dns, 53, udp}, {dns, 53, tcp}, {dns, 54, udp}, {other, 53, udp}, {dns6, 53, udp}, {dns6, 53, tcp}}
	nft := func(family, rules string) [][]string {
		return [][]string{{"nft", "add table " + family + " n; add chain " + family + " n c { type filter hook prerouting priority raw; }; " + rules}}
	}
	for _, c := range []struct {
		name string
		run  [][]string
		want []destination
	}{
		{"none", nil, nil},
		{"address and port", nft("ip", "add rule ip n c ip daddr 10.96.0.10 udp dport 53 notrack"), all[:1]},
		{"set of addresses", nft("inet", "add rule inet n c ip daddr { 10.96.0.10, 169.254.20.10 } meta l4proto { tcp, udp } th dport 53 notrack"), all[:2]},
		{"a chain that is called", nft("ip6", "add chain ip6 n d; add rule ip6 n d udp dport 53 notrack; add rule ip6 n c ip6 daddr fd00:96::a jump d"), all[4:5]},
		{"at another hook", [][]string{{"nft", "add table ip n; add chain ip n c { type filter hook output priority raw; }; add rule ip n c ip daddr 10.96.0.10 notrack"}}, nil},
		{"after conntrack", [][]string{{"nft", "add table ip n; add chain ip n c { type filter hook prerouting priority mangle; }; add rule ip n c ip daddr 10.96.0.10 notrack"}}, nil},
		{"of another address", nft("ip", "add rule ip n c ip daddr 10.96.0.12 notrack"), nil},
		{"after a rule that accepts", nft("ip", "add rule ip n c ip daddr 10.96.0.10 accept; add rule ip n c ip daddr 10.96.0.0/24 udp dport 53 notrack"), all[3:4]},
		{"iptables-nft", [][]string{{"iptables-nft", "-t raw -A PREROUTING -d 10.96.0.10 -p udp --dport 53 -j CT --notrack"}}, all[:1]},
		{"iptables-legacy", [][]string{{"iptables-legacy", "-t raw -A PREROUTING -d 10.96.0.10 -p udp --dport 53 -j CT --notrack"}}, all[:1]},
		{"iptables-legacy, inverted", [][]string{{"iptables-legacy", "-t raw -A PREROUTING ! -d 10.96.0.10 -p udp -j CT --notrack"}}, all[3:4]},
		{"iptables-legacy, for a network, after a rule that accepts", [][]string{
			{"iptables-legacy", "-t raw -A PREROUTING -d 10.96.0.11 -j ACCEPT"},
			{"iptables-legacy", "-t raw -A PREROUTING -d 10.96.0.0/24 -p udp -j CT --notrack"},
		}, []destination{all[0], all[2]}},
		{"iptables-legacy, at a device, or another target", [][]string{
			{"iptables-legacy", "-t raw -A PREROUTING -i eth7 -d 10.96.0.10 -p udp -j CT --notrack"},
			{"iptables-legacy", "-t raw -A PREROUTING -d 10.96.0.10 -p udp -j CT --zone 7"},
			{"iptables-legacy", "-t raw -A OUTPUT -d 10.96.0.10 -p udp -j CT --notrack"},
		}, nil},
		{"ip6tables-legacy", [][]string{
			{"ip6tables-legacy", "-t raw -N dns"}, {"ip6tables-legacy", "-t raw -A dns -d fd00:96::a -p tcp --dport 53 -j CT --notrack"},
			{"ip6tables-legacy", "-t raw -A PREROUTING -j dns"},
		}, all[5:6]},
	} {
		t.Run(c.name, func(t *testing.T) {
			inNamespace(t, func() {
				for _, command := range c.run {
					if command[0] == "nft" {
						load(t, command[1], "nft", "-f", "-")
					} else if out, err := exec.Command("sh", "-c", command[0]+" "+command[1]).CombinedOutput(); err != nil {
						t.Errorf("%v: %v: %s", command, err, out)
					}
				}
				var f NoTrackFinder
				for range 2 {
					found, err := f.Find(addresses)
					if err != nil {
						t.Error(err)
					}
					for _, d := range all {
						want := false
						for _, w := range c.want {
							want = want || w == d
						}
						if got := found.Has(netip.AddrPortFrom(netip.MustParseAddr(d.address), d.port), d.protocol); got != want {
							t.Errorf("%+v: %v, want %v", d, got, want)
						}
					}
					if found.Empty() != (len(c.want) == 0) {
						t.Errorf("empty: %v", found.Empty())
					}
				}
			})
		})
	}
}
