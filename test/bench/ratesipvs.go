// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"

	"beeline.io/beeline/test/lab"
)

const (
	sideIPVSNAT    = "IPVS, NAT"
	sideIPVSProxy  = "IPVS, NAT, and SNAT by connection tracking"
	sideIPVSTunnel = "IPVS, tunnel (IPIP)"
	sideIPVSDirect = "IPVS, direct routing"
)

// sidesOfIPVS is how their names begin.
const sidesOfIPVS = "IPVS, "

// ipvsSides is how many ways through IPVS there are.
const ipvsSides = 4

// addIPVS adds IPVS with one service of one destination, where the kernel has it: by NAT on node-a,
// in a tunnel on node-b, by direct routing on node-c; and in a lab of its own as kube-proxy has it,
// whose packets have the node's address.
func (rig *rateRig) addIPVS(ctx context.Context) error {
	if !hasIPVS() {
		return nil // as the printed table says
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
		world   *world
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
		// Answers come by the balancer where it has changed the packets' own addresses.
		if v.method == ipvsMasquerade {
			side.begun = func() (uint64, error) {
				connections, _, err := ipvsCounts(host)
				return connections, err
			}
		}
		rig.add(side)
	}
	return nil
}

// prepareIPVS makes the service, whose address has to be the node's: IPVS takes what is delivered
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
