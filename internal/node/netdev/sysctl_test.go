// SPDX-License-Identifier: Apache-2.0

package netdev_test

import (
	"fmt"
	"testing"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/node/netdev/netdevtest"
)

func TestForwardingOff(t *testing.T) {
	devices := []string{"eth0", "eth1.7"}
	for _, c := range []struct {
		name     string
		family   service.Family
		settings []string
		want     string
	}{
		{"on", service.IPv4, []string{"ipv4/ip_forward=1", "ipv4/conf/eth0/forwarding=1", "ipv4/conf/eth1.7/forwarding=1"}, "[]"},
		{"off", service.IPv4, []string{"ipv4/ip_forward=0", "ipv4/conf/eth0/forwarding=0", "ipv4/conf/eth1.7/forwarding=0"}, "[net.ipv4.ip_forward]"},
		{"on at the devices", service.IPv4, []string{"ipv4/ip_forward=0", "ipv4/conf/eth0/forwarding=1", "ipv4/conf/eth1.7/forwarding=1"}, "[]"},
		{"off at one device", service.IPv4, []string{"ipv4/ip_forward=1", "ipv4/conf/eth0/forwarding=1", "ipv4/conf/eth1.7/forwarding=0"}, "[net.ipv4.conf.eth1/7.forwarding]"},
		{"off", service.IPv6, []string{"ipv6/conf/all/forwarding=0", "ipv6/conf/eth0/forwarding=0"}, "[net.ipv6.conf.all.forwarding]"},
		{"on at the devices alone", service.IPv6, []string{"ipv6/conf/all/forwarding=0", "ipv6/conf/eth0/forwarding=1"}, "[net.ipv6.conf.all.forwarding]"},
		{"off at one device", service.IPv6, []string{"ipv6/conf/all/forwarding=1", "ipv6/conf/eth0/forwarding=0"}, "[net.ipv6.conf.eth0.forwarding]"},
		{"no IPv6", service.IPv6, nil, "[]"},
	} {
		t.Run(fmt.Sprint(c.family, " ", c.name), func(t *testing.T) {
			if got := fmt.Sprint(netdev.ForwardingOff(netdevtest.Sysctls(t, c.settings...), c.family == service.IPv6, devices)); got != c.want {
				t.Errorf("to be set: %s, want %s", got, c.want)
			}
		})
	}
}
