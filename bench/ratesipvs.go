// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/test/lab"
)

const (
	sideIPVSNAT    = "IPVS, NAT"
	sideIPVSProxy  = "IPVS, NAT and SNAT"
	sideIPVSTunnel = "IPVS, tunnel (IPIP)"
	sideIPVSDirect = "IPVS, direct routing"
	// Additionally, what the second one is compared with.
	sideMasquerade = "iptables (legacy), DNAT and SNAT"
)

// sidesOfIPVS is the common prefix of their names.
const sidesOfIPVS = "IPVS, "

// ipvsSides is the number of sides of addIPVS.
const ipvsSides = 5

// addIPVS adds IPVS with one service and one destination, if the kernel has it: by NAT on node-a, in a tunnel
// on node-b, by direct routing on node-c; and in another lab as in kube-proxy, where conntrack gives packets
// the node's address. There iptables does the same on node-b.
func (rig *rateRig) addIPVS(ctx context.Context) error {
	if !hasIPVS() {
		return nil // the printed table says so
	}
	w, err := rig.newWorld()
	if err != nil {
		return err
	}
	other, err := rig.newWorld()
	if err != nil {
		return err
	}
	for _, v := range []struct {
		name    string
		world   *harness.World
		host    string
		method  uint32
		becomes becoming
	}{
		{sideIPVSNAT, w, "node-a", ipvsMasquerade, becomesDNAT},
		{sideIPVSTunnel, w, "node-b", ipvsTunnel, becomesIPIP},
		{sideIPVSDirect, w, "node-c", ipvsDirect, becomesNothing},
		{sideIPVSProxy, other, "node-a", ipvsMasquerade, becomesSNAT},
	} {
		host := v.world.Host(v.host)
		if err := prepareIPVS(ctx, host, v.method, v.becomes); err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
		line, err := rig.newLine(ctx, v.world, v.host)
		if err != nil {
			return err
		}
		side := &rateSide{name: v.name, line: line, becomes: v.becomes, handled: func() (uint64, error) {
			_, packets, err := ipvsCounts(host)
			return packets, err
		}}
		// Replies return through the balancer if it has changed the packets' own addresses.
		if v.method == ipvsMasquerade {
			side.begun = func() (uint64, error) {
				connections, _, err := ipvsCounts(host)
				return connections, err
			}
		}
		rig.add(side)
	}
	return rig.addMasquerade(ctx, other, "node-b")
}

func (rig *rateRig) addMasquerade(ctx context.Context, w *harness.World, name string) error {
	host, rule := w.Host(name), iptablesRule("iptables-legacy")
	snat := []string{"iptables-legacy", "-w", "-t", "nat", "-A", "POSTROUTING", "-d", rateEndpoint.Addr().String(), "-p", "udp", "-j", "MASQUERADE"}
	for _, command := range [][]string{rule[0], snat} {
		if out, err := host.Command(ctx, command...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", sideMasquerade, err, out)
		}
	}
	line, err := rig.newLine(ctx, w, name)
	if err == nil {
		rig.add(&rateSide{name: sideMasquerade, line: line, becomes: becomesSNAT, begun: ruleCount(ctx, host, iptablesCounter, rule[1])})
	}
	return err
}

// prepareIPVS creates the service, whose address has to be the node's: IPVS handles only what is delivered
// there.
func prepareIPVS(ctx context.Context, host *lab.Host, method uint32, becomes becoming) error {
	if err := host.AddAddress("lo", netip.PrefixFrom(rateService.Addr(), 32)); err != nil {
		return err
	}
	endpoint := rateEndpoint
	if method != ipvsMasquerade {
		endpoint = netip.AddrPortFrom(rateEndpoint.Addr(), rateService.Port())
	}
	if err := addIPVS(host, rateService, endpoint, method); err != nil {
		return err
	}
	if becomes != becomesSNAT {
		return nil
	}
	const script = `sysctl -q -w net.ipv4.vs.conntrack=1 && iptables-legacy -w -t nat -A POSTROUTING -d "$1" -p udp -m ipvs --vaddr "$2" -j MASQUERADE`
	if out, err := host.Command(ctx, "sh", "-c", script, "sh", rateEndpoint.Addr().String(), rateService.Addr().String()).CombinedOutput(); err != nil {
		return fmt.Errorf("masquerading: %w: %s", err, out)
	}
	return nil
}
