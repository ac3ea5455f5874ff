// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/shared"
)

// What goes to the proxy of a pod, by its policy as the agent writes it: each rule alone, its precedence, and what
// the proxy itself does. The process of this test is the one that connects, so it is the proxy if it has the proxy's
// user or group.
func TestMeshPolicy(t *testing.T) {
	p := shared.LoadMesh(t)
	d := &Datapath{maps: func(name string) *ebpf.Map { return p.Maps[name] }}
	must(t, d.SetNodeAddresses([]netip.Addr{netip.MustParseAddr("192.0.2.11")}))
	const pod, peer, node, server, port = "10.10.1.5", "10.10.2.7", "192.0.2.11", "10.96.0.10", 8080
	mine, myGroup, other := uint32(os.Getuid()), uint32(os.Getgid()), uint32(os.Getuid()+1337)
	notProxy := Proxy{UID: &other, GID: &other}
	all := Policy{Proxy: notProxy, AllOutbound: true, AllInbound: true, DNS: true, NameServers: []netip.Addr{netip.MustParseAddr(server)}}
	with := func(p Policy, change func(*Policy)) Policy {
		change(&p)
		return p
	}
	ports := func(rule Rule) map[uint16]Rule { return map[uint16]Rule{port: rule} }
	networks := func(rules ...any) map[netip.Prefix]Rule {
		all := map[netip.Prefix]Rule{}
		for i := 0; i < len(rules); i += 2 {
			all[netip.MustParsePrefix(rules[i].(string))] = rules[i+1].(Rule)
		}
		return all
	}
	none := Policy{Proxy: notProxy}
	for _, c := range []struct {
		name                   string
		policy                 Policy
		remote, local          string
		port                   uint16
		outbound, dns, inbound bool
	}{
		{"everything", all, peer, pod, port, true, false, true},
		{"everything of IPv6", all, "2001:db8::7", "2001:db8::5", port, true, false, true},
		{"nothing", none, peer, pod, port, false, false, false},
		{"outbound alone", with(none, func(p *Policy) { p.AllOutbound = true }), peer, pod, port, true, false, false},
		{"inbound alone", with(none, func(p *Policy) { p.AllInbound = true }), peer, pod, port, false, false, true},

		{"the process has the proxy's user", with(all, func(p *Policy) { p.Proxy.UID = &mine }), peer, pod, port, false, false, true},
		{"the process has the proxy's group", with(all, func(p *Policy) { p.Proxy.GID = &myGroup }), peer, pod, port, false, false, true},
		{"neither user nor group tells the proxy", with(all, func(p *Policy) { p.Proxy = Proxy{} }), peer, pod, port, true, false, true},
		{"the group alone tells it", with(all, func(p *Policy) { p.Proxy = Proxy{GID: &myGroup} }), peer, pod, port, false, false, true},
		{"the user alone tells it", with(all, func(p *Policy) { p.Proxy = Proxy{UID: &mine} }), peer, pod, port, false, false, true},

		{"a loopback address", all, "127.0.0.1", pod, port, false, false, false},
		{"this host", all, "0.0.0.0", pod, port, false, false, true},
		{"the pod itself", all, pod, pod, port, true, false, false},
		{"::6, the proxy's source", all, "::6", "2001:db8::5", port, true, false, false},
		{"the proxy's port for outbound connections", all, peer, pod, shared.MeshOutboundPort, false, false, false},
		{"the proxy's port for inbound connections", all, peer, pod, shared.MeshInboundPort, false, false, false},

		{"an excluded port, outbound", with(all, func(p *Policy) { p.OutboundPorts = ports(Exclude) }), peer, pod, port, false, false, true},
		{"an excluded port, inbound", with(all, func(p *Policy) { p.InboundPorts = ports(Exclude) }), peer, pod, port, true, false, false},
		{"another port is excluded", with(all, func(p *Policy) { p.OutboundPorts, p.InboundPorts = ports(Exclude), ports(Exclude) }), peer, pod, port + 1, true, false, true},
		{"an included port, outbound", with(none, func(p *Policy) { p.OutboundPorts = ports(Include) }), peer, pod, port, true, false, false},
		{"an included port, inbound", with(none, func(p *Policy) { p.InboundPorts = ports(Include) }), peer, pod, port, false, false, true},
		{"an excluded network", with(all, func(p *Policy) { p.Networks = networks("10.10.0.0/16", Exclude) }), peer, pod, port, false, false, true},
		{"an included network", with(none, func(p *Policy) { p.Networks = networks("10.10.0.0/16", Include) }), peer, pod, port, true, false, false},
		{"an included network in an excluded one", with(none, func(p *Policy) { p.Networks = networks("10.0.0.0/8", Exclude, "10.10.2.0/24", Include) }), peer, pod, port, true, false, false},
		{"an included port of an excluded network", with(none, func(p *Policy) {
			p.OutboundPorts, p.Networks = ports(Include), networks("10.10.0.0/16", Exclude)
		}), peer, pod, port, false, false, false},
		{"an excluded port of an included network", with(none, func(p *Policy) {
			p.OutboundPorts, p.Networks = ports(Exclude), networks("10.10.0.0/16", Include)
		}), peer, pod, port, false, false, false},

		{"a probe of the kubelet", with(all, func(p *Policy) { p.InboundPorts = ports(Probe) }), node, pod, port, true, false, false},
		{"another host to a probed port", with(all, func(p *Policy) { p.InboundPorts = ports(Probe) }), peer, pod, port, true, false, true},
		{"another host to a probed port, nothing is included", with(none, func(p *Policy) { p.InboundPorts = ports(Probe) }), peer, pod, port, false, false, false},
		{"a probe of the kubelet at an included port", with(none, func(p *Policy) { p.InboundPorts = ports(ProbeIncluded) }), node, pod, port, false, false, false},
		{"another host to an included port that is probed", with(none, func(p *Policy) { p.InboundPorts = ports(ProbeIncluded) }), peer, pod, port, false, false, true},
		{"the kubelet at a port that it does not probe", all, node, pod, port, true, false, true},

		{"a question for a name server", all, server, pod, 53, true, true, true},
		{"a question for another", all, peer, pod, 53, true, false, true},
		{"another, of all servers", with(all, func(p *Policy) { p.AllNameServers = true }), peer, pod, 53, true, true, true},
		{"another port of a name server", all, server, pod, port, true, false, true},
		{"without DNS", with(all, func(p *Policy) { p.DNS = false }), server, pod, 53, true, false, true},
		{"its port is excluded", with(all, func(p *Policy) { p.OutboundPorts = map[uint16]Rule{53: Exclude} }), server, pod, 53, false, false, true},
		{"its network is excluded", with(all, func(p *Policy) { p.Networks = networks("10.96.0.0/12", Exclude) }), server, pod, 53, false, true, true},
		{"the proxy asks", with(all, func(p *Policy) { p.Proxy.UID = &mine }), server, pod, 53, false, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			const namespace = 77
			strict := none // of another pod, whose rules must not matter
			strict.OutboundPorts, strict.InboundPorts, strict.Networks = ports(Exclude), ports(Exclude), networks("0.0.0.0/0", Exclude)
			must(t, d.SetPolicies([]PodPolicy{{Cgroup: 1<<32 | 9, Namespace: namespace, Policy: &c.policy}, {Cgroup: 9, Namespace: namespace + 1, Policy: &strict}}))
			q := shared.MeshQuestion{Netns: namespace, Port: c.port}
			q.Remote.Bytes, q.Local.Bytes = bpf.AddressFrom(netip.MustParseAddr(c.remote)).Bytes, bpf.AddressFrom(netip.MustParseAddr(c.local)).Bytes
			p.Ask(&q)
			if q.Outbound != 0 != c.outbound || q.Dns != 0 != c.dns || q.Inbound != 0 != c.inbound {
				goes := map[bool]string{true: "goes to the proxy", false: "passes it by"}
				for _, x := range []struct {
					what      string
					got, want bool
				}{
					{fmt.Sprintf("the application's connect() to %s port %d", c.remote, c.port), q.Outbound != 0, c.outbound},
					{fmt.Sprintf("the application's DNS query to %s port %d", c.remote, c.port), q.Dns != 0, c.dns},
					{fmt.Sprintf("a connection from %s to the application's %s port %d", c.remote, c.local, c.port), q.Inbound != 0, c.inbound},
				} {
					if x.got != x.want {
						t.Errorf("%s %s, want: %s; the policy of the pod: %s", x.what, goes[x.got], goes[x.want], policyText(&c.policy))
					}
				}
			}
		})
	}
}

// policyText is a policy in the words of a failed test.
func policyText(p *Policy) string {
	id := func(n *uint32) string {
		if n == nil {
			return "any"
		}
		return fmt.Sprint(*n)
	}
	rules := map[Rule]string{Exclude: "exclude", Include: "include", Probe: "of probes", ProbeIncluded: "of probes, and included"}
	text := fmt.Sprintf("proxy of user %s, group %s; all outbound %t, all inbound %t; DNS %t, of all servers %t, of %v", id(p.Proxy.UID), id(p.Proxy.GID),
		p.AllOutbound, p.AllInbound, p.DNS, p.AllNameServers, p.NameServers)
	for port, rule := range p.OutboundPorts {
		text += fmt.Sprintf("; outbound port %d: %s", port, rules[rule])
	}
	for port, rule := range p.InboundPorts {
		text += fmt.Sprintf("; inbound port %d: %s", port, rules[rule])
	}
	for network, rule := range p.Networks {
		text += fmt.Sprintf("; network %s: %s", network, rules[rule])
	}
	return text
}

// must ends the test if a step fails that is not under test.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
