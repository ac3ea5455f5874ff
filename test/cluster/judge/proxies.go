// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"strings"

	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
)

// proxyConfig is the configuration of both proxies.
type proxyConfig struct {
	// networks are kube-proxy's nodePortAddresses and Beeline's --nodeport-addresses; empty: the default of
	// both, the node's primary addresses.
	networks string
	flags    []string // further ones of Beeline
	xdp      bool     // XDP handles packets from outside, else tc
	masqAll  bool     // both masquerade pods, too
	// kinds say what the networks mean for an address of each family: primary (they select the primary one,
	// or it is the default), second (the second one), all, loopback (the primary one and loopback), unnamed
	// (networks of the other family only), off (the default, and Beeline serves nothing on loopback).
	kinds map[string]string
}

func kindsOf(v4, v6 string) map[string]string { return map[string]string{"v4": v4, "v6": v6} }

// proxyConfigs by Scenario.Proxy.
var proxyConfigs = map[string]proxyConfig{
	"":                    {flags: []string{"--pod-devices=auto"}, kinds: kindsOf("primary", "primary")},
	"node ports v4":       {networks: "192.168.100.0/24", kinds: kindsOf("primary", "unnamed")},
	"node ports v6":       {networks: "fd00:100::/64", kinds: kindsOf("unnamed", "primary")},
	"node ports second":   {networks: "203.0.113.0/24,2001:db8:a::/64", kinds: kindsOf("second", "second")},
	"node ports all":      {networks: "0.0.0.0/0,::/0", kinds: kindsOf("all", "all")},
	"node ports primary":  {networks: "primary", kinds: kindsOf("primary", "primary")},
	"node ports loopback": {networks: "127.0.0.0/8,192.168.100.1/32,::1/128,fd00:100::1/128", kinds: kindsOf("loopback", "loopback")},
	"not on loopback":     {flags: []string{"--localhost-nodeports=false"}, kinds: kindsOf("off", "off")},
	"masquerade all":      {flags: []string{"--masquerade-all"}, masqAll: true, kinds: kindsOf("primary", "primary")},
	// Last in order: it changes the devices of Beeline's lab for good.
	"xdp": {flags: []string{"--edge-mode=xdp", "--pod-devices=auto"}, xdp: true, kinds: kindsOf("primary", "primary")},
}

// nodePortsFor is what nodePortAddresses mean for a family.
func (s *Scenario) nodePortsFor(family string) string { return proxyConfigs[s.Proxy].kinds[family] }

// edge is where Beeline handles packets from outside.
func (s *Scenario) edge() string {
	if proxyConfigs[s.Proxy].xdp {
		return "xdp"
	}
	return "tc"
}

// options are the options of a pair of proxies with this configuration.
func (c proxyConfig) options() Options {
	o := Options{Agent: c.flags, XDP: c.xdp}
	if c.networks != "" {
		o.Agent = append([]string{"--nodeport-addresses=" + c.networks}, c.flags...)
	}
	o.KubeProxy = func(config *kubeproxy.KubeProxyConfiguration) {
		config.NFTables.MasqueradeAll = c.masqAll
		if c.networks != "" {
			config.NodePortAddresses = strings.Split(c.networks, ",")
		}
	}
	return o
}
