// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/sidecar"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// TestPolicyOfPod: exclusions win over inclusions, of the pod and of the agent.
func TestPolicyOfPod(t *testing.T) {
	d := Defaults{ProxyUID: 1337, ProxyGID: 1337, DNS: true, ExcludeOutboundPorts: []uint16{22}, ExcludeInboundPorts: []uint16{23}, ExcludeOutbound: prefixes("10.9.0.0/16")}
	user := uint32(1500)
	p := d.policyOf(&sidecar.Rules{
		ProxyUID: &user, IncludeOutboundPorts: []uint16{22, 80, 443}, ExcludeOutboundPorts: []uint16{443},
		IncludeOutbound: sidecar.Networks{List: prefixes("10.1.0.0/16", "10.9.1.0/24", "10.0.0.0/8")}, ExcludeOutbound: prefixes("10.1.0.0/16", "10.1.2.0/24"),
		IncludeInboundPorts: sidecar.Ports{List: []uint16{8080, 9000}}, ExcludeInboundPorts: []uint16{9000}, ProbePorts: []uint16{8080, 8081, 9000},
	})
	if *p.Proxy.UID != 1500 || *p.Proxy.GID != 1337 || p.AllOutbound || p.AllInbound || p.DNS {
		t.Errorf("the pod's annotations give the proxy user 1500, and the defaults group 1337; the policy has user %d, group %d, all outbound %t, all inbound %t, DNS %t; want 1500, 1337, and false three times",
			*p.Proxy.UID, *p.Proxy.GID, p.AllOutbound, p.AllInbound, p.DNS)
	}
	if want := map[uint16]Rule{22: Exclude, 80: Include, 443: Exclude}; !maps.Equal(p.OutboundPorts, want) {
		t.Errorf("the pod includes the outbound ports 22, 80 and 443 and excludes 443, the agent excludes 22: the policy has %v, want %v", rulesText(p.OutboundPorts), rulesText(want))
	}
	if want := map[uint16]Rule{23: Exclude, 8080: ProbeIncluded, 8081: Probe, 9000: Exclude}; !maps.Equal(p.InboundPorts, want) {
		t.Errorf("the pod includes the inbound ports 8080 and 9000, excludes 9000, and has probes at 8080, 8081 and 9000, the agent excludes 23: the policy has %v, want %v",
			rulesText(p.InboundPorts), rulesText(want))
	}
	want := map[netip.Prefix]Rule{}
	setRules(want, prefixes("10.0.0.0/8"), Include)
	setRules(want, prefixes("10.1.0.0/16", "10.1.2.0/24", "10.9.0.0/16"), Exclude)
	if !maps.Equal(p.Networks, want) {
		t.Errorf("the networks of the policy are %v, want %v: an exclusion of the pod or of the agent wins over inclusions within it", rulesText(p.Networks), rulesText(want))
	}
}

// rulesText is rules in the words of a failed test.
func rulesText[K comparable](rules map[K]Rule) map[K]string {
	names := map[Rule]string{Exclude: "exclude", Include: "include", Probe: "probes", ProbeIncluded: "probes, included"}
	text := map[K]string{}
	for key, rule := range rules {
		text[key] = names[rule]
	}
	return text
}

// TestRulesOfManyPods: a pod with very many rules is refused, and keeps no other from its rules.
func TestRulesOfManyPods(t *testing.T) {
	const ports, networks = 1000, 500
	pod := func(ports, networks int) Pod {
		p := Pod{MeshPod: api.MeshPod{CgroupID: 1}, policy: &Policy{OutboundPorts: map[uint16]Rule{}, Networks: map[netip.Prefix]Rule{}}}
		for i := range ports {
			p.policy.OutboundPorts[uint16(i)] = Exclude
		}
		for i := range networks {
			p.policy.Networks[netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i)}), 32)] = Exclude
		}
		return p
	}
	for _, c := range []struct {
		name    string
		pods    []Pod
		refused []int
	}{
		{"all fit", []Pod{pod(600, 100), pod(400, 400)}, nil},
		{"too many ports", []Pod{pod(990, 0), pod(10, 0), pod(1, 0)}, []int{0}},
		{"too many networks", []Pod{pod(1, 1), pod(1, 499), pod(2, 2), pod(0, 300)}, []int{1}},
		{"one has too many alone", []Pod{pod(0, 501), pod(1, 1), pod(1001, 0)}, []int{0, 2}},
		{"many with many", []Pod{pod(300, 0), pod(300, 0), pod(5, 0), pod(300, 0), pod(300, 0), pod(300, 0)}, []int{4, 5}},
		{"one that does not run", []Pod{{policy: pod(900, 0).policy}, pod(900, 0)}, nil},
	} {
		refuseUnfit(c.pods, ports, networks)
		var refused []int
		for i := range c.pods {
			if c.pods[i].unfit != "" {
				refused = append(refused, i)
				if in := c.pods[i].policyIn(); in.Proxy.Known() || !in.AllInbound || !in.AllOutbound || len(in.OutboundPorts)+len(in.Networks) > 0 {
					t.Errorf("%s: pod %d is refused, and its policy has a proxy: %t, all inbound %t, all outbound %t, %d ports and networks; want all its traffic refused: no proxy, all, all, none",
						c.name, i, in.Proxy.Known(), in.AllInbound, in.AllOutbound, len(in.OutboundPorts)+len(in.Networks))
				}
			}
		}
		if !slices.Equal(refused, c.refused) {
			t.Errorf("%s: of %d pods with room for %d rules of ports and %d of networks, those with the indexes %v are refused, want %v: those with the most rules", c.name, len(c.pods),
				ports, networks, refused, c.refused)
		}
		for i := range c.pods { // until they have fewer
			c.pods[i].policy = pod(1, 1).policy
		}
		if refuseUnfit(c.pods, ports, networks); slices.ContainsFunc(c.pods, func(p Pod) bool { return p.unfit != "" }) {
			t.Errorf("%s: still refused", c.name)
		}
	}
}

// TestManyNetworks: annotations have room for 20,000 networks of each kind.
func TestManyNetworks(t *testing.T) {
	rules := map[netip.Prefix]Rule{}
	for i := range 20000 {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0})
		rules[netip.PrefixFrom(a, 24)] = Include
		if i%2 == 0 {
			rules[netip.PrefixFrom(a, 23).Masked()] = Exclude
		}
	}
	begin := time.Now()
	dropShadowed(rules)
	if len(rules) != 10000 || time.Since(begin) > 5*time.Second {
		t.Errorf("%d networks are left after %v, want 10,000 excluded ones at once", len(rules), time.Since(begin))
	}
}

// TestWhatTellsTheProxy: a user or group tells the proxy unless it is root's, or an application's.
func TestWhatTellsTheProxy(t *testing.T) {
	id := func(n uint32) *uint32 { return &n }
	for _, c := range []struct {
		name     string
		defaults Defaults
		sidecar  sidecar.Rules
		uid, gid uint32 // 0: does not tell
	}{
		{"the image's", Defaults{ProxyUID: 1337, ProxyGID: 1337}, sidecar.Rules{}, 1337, 1337},
		{"the container's", Defaults{ProxyUID: 1337, ProxyGID: 1337}, sidecar.Rules{ProxyUID: id(7), ProxyGID: id(8)}, 7, 8},
		{"root, with a group of its own", Defaults{ProxyUID: 1337, ProxyGID: 1337}, sidecar.Rules{ProxyUID: id(0), ProxyGID: id(1337)}, 0, 1337},
		{"root", Defaults{ProxyUID: 1337, ProxyGID: 1337}, sidecar.Rules{ProxyUID: id(0), ProxyGID: id(0)}, 0, 0},
		{"the pod's, of an application, too", Defaults{ProxyUID: 1337, ProxyGID: 1337}, sidecar.Rules{ProxyUID: id(7), ProxyGID: id(8), OtherUIDs: []uint32{9, 7}, OtherGIDs: []uint32{8}}, 0, 0},
		{"an application's user is the image's", Defaults{ProxyUID: 1337, ProxyGID: 1337}, sidecar.Rules{OtherUIDs: []uint32{1337}}, 0, 1337},
		{"of flags alone", Defaults{ProxyUID: 0, ProxyGID: 5}, sidecar.Rules{}, 0, 5},
	} {
		got := c.defaults.proxyOf(&c.sidecar)
		for _, x := range []struct {
			what string
			got  *uint32
			want uint32
		}{{"user", got.UID, c.uid}, {"group", got.GID, c.gid}} {
			if (x.got == nil) != (x.want == 0) || x.got != nil && *x.got != x.want {
				got := "none"
				if x.got != nil {
					got = fmt.Sprint(*x.got)
				}
				t.Errorf("%s: the %s by which the proxy is known is %s, want %d (0: none, as root or an application has it)", c.name, x.what, got, x.want)
			}
		}
	}
}
