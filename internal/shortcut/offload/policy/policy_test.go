// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node/flow"
)

func flowOf(protocol uint8, helper, source, destination, newSource, newDestination string) flow.Flow {
	at := netip.MustParseAddrPort
	return flow.Flow{
		In:     flow.Tuple{Source: at(source), Destination: at(destination), Protocol: protocol},
		Out:    flow.Tuple{Source: at(newSource), Destination: at(newDestination), Protocol: protocol},
		Helper: helper,
	}
}

// A flow and its replies get the same decision, by what they have before and after NAT.
func TestRefuses(t *testing.T) {
	const tcp, udp = unix.IPPROTO_TCP, unix.IPPROTO_UDP
	nat := flowOf(tcp, "", "192.0.2.1:1000", "203.0.113.1:443", "10.0.0.1:30000", "10.1.0.1:8443")
	dns := flowOf(udp, "", "192.0.2.1:1001", "10.1.0.2:53", "192.0.2.1:1001", "10.1.0.2:53")
	six := flowOf(tcp, "", "[2001:db8::1]:1002", "[fd00::1]:80", "[2001:db8::1]:1002", "[fd00::1]:80")
	ftp := flowOf(tcp, "ftp", "192.0.2.1:1003", "10.1.0.1:21", "192.0.2.1:1003", "10.1.0.1:21")
	networks := func(all ...string) (list []netip.Prefix) {
		for _, one := range all {
			list = append(list, netip.MustParsePrefix(one))
		}
		return list
	}
	for _, c := range []struct {
		name   string
		policy Policy
		flow   flow.Flow
		want   string
	}{
		{"all", Policy{}, nat, ""},
		{"all, IPv6", Policy{}, six, ""},
		{"helper", Policy{}, ftp, "the conntrack helper ftp reads its packets"},
		{"ICMP", Policy{}, flowOf(unix.IPPROTO_ICMP, "", "192.0.2.1:0", "10.1.0.1:0", "192.0.2.1:0", "10.1.0.1:0"), "neither of TCP nor of UDP"},
		{"client", Policy{Networks: networks("192.0.2.0/24")}, nat, ""},
		{"address before NAT", Policy{Networks: networks("203.0.113.1/32")}, nat, ""},
		{"server after NAT", Policy{Networks: networks("fd00::/64", "10.1.0.0/16")}, nat, ""},
		{"no end", Policy{Networks: networks("10.2.0.0/16")}, nat, "neither end is in --offload-networks"},
		{"all of the other family", Policy{Networks: networks("::/0")}, nat, "neither end is in --offload-networks"},
		{"port before NAT", Policy{Ports: []bpf.PortRange{{First: 443, Last: 443}}}, nat, ""},
		{"port after NAT", Policy{Ports: []bpf.PortRange{{First: 8000, Last: 8443}}}, nat, ""},
		{"no port", Policy{Ports: []bpf.PortRange{{First: 8444, Last: 9000}}}, nat, "neither end has a port of --offload-ports"},
		{"protocol", Policy{Protocols: []uint8{udp}}, dns, ""},
		{"another protocol", Policy{Protocols: []uint8{udp}}, nat, "none of --offload-protocols"},
		{"one of three is not met", Policy{Protocols: []uint8{tcp}, Networks: networks("0.0.0.0/0"), Ports: []bpf.PortRange{{First: 1, Last: 1}}}, nat, "--offload-ports"},
		{"excluded after NAT", Policy{ExcludeNetworks: networks("10.1.0.0/24")}, nat, "10.1.0.1 is in 10.1.0.0/24 of --offload-exclude-networks"},
		{"excluded, though asked for", Policy{Networks: networks("192.0.2.0/24"), ExcludeNetworks: networks("192.0.2.1/32")}, dns, "192.0.2.1 is in 192.0.2.1/32"},
		{"excluded port", Policy{ExcludePorts: []bpf.PortRange{{First: 50, Last: 60}}}, dns, "port 53 is in 50-60 of --offload-exclude-ports"},
		{"other excluded port", Policy{ExcludePorts: []bpf.PortRange{{First: 54, Last: 60}}}, dns, ""},
	} {
		for _, one := range []flow.Flow{c.flow, c.flow.Reverse()} {
			got := c.policy.Refuses(one)
			if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("%s: %s: %q, want %q", c.name, one.In, got, c.want)
			}
		}
	}
}
