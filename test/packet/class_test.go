// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"slices"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// A client is a pod if the longest prefix with its address is a pod network, both with few networks, which the
// programs compare directly, and with so many that they are looked up in the table. Packets from pods need a
// conntrack entry, packets from outside do not.
func TestClassOfClients(t *testing.T) {
	w := newScene(t)
	clients := []string{
		"10.10.0.0", "10.10.255.255", "10.9.255.255", "10.11.0.0", "172.20.5.1", "172.20.6.1", "198.18.0.1",
		"fd00:10::", "fd00:10:ffff:ffff:ffff:ffff:ffff:ffff", "fd00:f:ffff:ffff:ffff:ffff:ffff:ffff", "fd00:11::", "fd00:20:5::1", "fd00:20:6::1", "fd00:30::1",
		"::a0a:0", "fd00:10a::1",
	}
	apart := []string{"10.10.0.0/16", "fd00:10::/32"}
	for i := range 5 {
		apart = append(apart, []string{"172.20.1.0/24", "172.20.3.0/24", "172.20.5.0/24", "172.20.7.0/24", "172.20.9.0/24"}[i],
			[]string{"fd00:20:1::/48", "fd00:20:3::/48", "fd00:20:5::/48", "fd00:20:7::/48", "fd00:20:9::/48"}[i])
	}
	for _, c := range []struct {
		name  string
		pods  []string
		whole bool
	}{
		{"one of each family", []string{"10.10.0.0/16", "fd00:10::/32"}, true},
		{"none", nil, true},
		{"side by side", []string{"10.10.0.0/17", "10.10.128.0/17", "172.20.4.0/24", "172.20.5.0/24", "fd00:10::/33", "fd00:10:8000::/33", "fd00:20:5::/48"}, true},
		{"more than fit", apart, false},
		{"around Services", []string{"10.0.0.0/8", "fd00::/20"}, false},
		{"all of IPv4, as mapped addresses", []string{"::/0"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			tables := w.scene()
			tables.Pods = prefixes(c.pods...)
			for key, f := range tables.Frontends {
				if f.DSR == model.IPIP {
					f.Untracked = true
					tables.Frontends[key] = f
				}
			}
			w.enter(t)
			w.apply(t, tables)
			if w.prefilter.PodsComplete() != c.whole {
				t.Fatalf("the list of pod networks is complete: %v", w.prefilter.PodsComplete())
			}
			w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
				for _, text := range clients {
					client := netip.MustParseAddr(text)
					if client.Is4() != f.client.Is4() {
						continue
					}
					question, before := f.question(protocol, direct(toRemote, model.IPIP)), w.counts(t)
					question.from = on(client, clientPort)
					w.run(t, at, question.frame(t))
					sixteen := netip.AddrFrom16(client.As16())
					pod := slices.ContainsFunc(tables.Pods, func(p netip.Prefix) bool {
						return p.Contains(client) || p.Addr().Is6() && p.Contains(sixteen) || p.Bits() == 0
					})
					if without := w.counts(t)[model.Untracked] == before[model.Untracked]+1; without == pod {
						t.Errorf("%v is forwarded without an entry: %v; it is a pod: %v", client, without, pod)
					}
				}
			})
		})
	}
	if bpf.EdgeTCPrefilterSizePREFILTER_PODS >= 5 {
		t.Error("the networks that should not fit do")
	}
}
