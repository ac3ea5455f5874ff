// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"fmt"
	"net/netip"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/test/lab"
)

const (
	SideIPVSNAT    = "IPVS, NAT"
	SideIPVSProxy  = "IPVS, NAT and SNAT"
	SideIPVSTunnel = "IPVS, tunnel (IPIP)"
	SideIPVSDirect = "IPVS, direct routing"
	// Additionally, what the second one is compared with.
	SideMasquerade = "iptables (legacy), DNAT and SNAT"
)

// SidesOfIPVS is the common prefix of their names.
const SidesOfIPVS = "IPVS, "

// AddIPVS adds IPVS with one service and one destination, if the kernel has it: by NAT on node-a, in a tunnel
// on node-b, by direct routing on node-c; and in another lab as in kube-proxy, where conntrack gives packets
// the node's address. There iptables does the same on node-b.
func (rig *Rig) AddIPVS(ctx context.Context) error {
	if !HasIPVS() {
		return nil // the printed table says so
	}
	w, err := rig.NewWorld()
	if err != nil {
		return err
	}
	other, err := rig.NewWorld()
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
		{SideIPVSNAT, w, "node-a", ipvsMasquerade, becomesDNAT},
		{SideIPVSTunnel, w, "node-b", ipvsTunnel, becomesIPIP},
		{SideIPVSDirect, w, "node-c", ipvsDirect, BecomesNothing},
		{SideIPVSProxy, other, "node-a", ipvsMasquerade, BecomesSNAT},
	} {
		host := v.world.Host(v.host)
		if err := prepareIPVS(ctx, host, v.method, v.becomes); err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
		line, err := rig.newLine(ctx, v.world, v.host)
		if err != nil {
			return err
		}
		side := &Side{Name: v.name, Line: line, Becomes: v.becomes, handled: func() (uint64, error) {
			_, packets, err := ipvsCounts(host)
			return packets, err
		}}
		// Replies return through the balancer if it has changed the packets' own addresses.
		if v.method == ipvsMasquerade {
			side.Begun = func() (uint64, error) {
				connections, _, err := ipvsCounts(host)
				return connections, err
			}
		}
		rig.add(side)
	}
	return rig.addMasquerade(ctx, other, "node-b")
}

func (rig *Rig) addMasquerade(ctx context.Context, w *harness.World, name string) error {
	host, rule := w.Host(name), iptablesRule("iptables-legacy")
	snat := []string{"iptables-legacy", "-w", "-t", "nat", "-A", "POSTROUTING", "-d", Endpoint.Addr().String(), "-p", "udp", "-j", "MASQUERADE"}
	for _, command := range [][]string{rule[0], snat} {
		if out, err := host.Command(ctx, command...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", SideMasquerade, err, out)
		}
	}
	line, err := rig.newLine(ctx, w, name)
	if err == nil {
		rig.add(&Side{Name: SideMasquerade, Line: line, Becomes: BecomesSNAT, Begun: RuleCount(ctx, host, iptablesCounter, rule[1])})
	}
	return err
}

// prepareIPVS creates the service, whose address has to be the node's: IPVS handles only what is delivered
// there.
func prepareIPVS(ctx context.Context, host *lab.Host, method uint32, becomes becoming) error {
	if err := host.AddAddress("lo", netip.PrefixFrom(Service.Addr(), 32)); err != nil {
		return err
	}
	endpoint := Endpoint
	if method != ipvsMasquerade {
		endpoint = netip.AddrPortFrom(Endpoint.Addr(), Service.Port())
	}
	if err := addIPVS(host, Service, endpoint, method); err != nil {
		return err
	}
	if becomes != BecomesSNAT {
		return nil
	}
	const script = `sysctl -q -w net.ipv4.vs.conntrack=1 && iptables-legacy -w -t nat -A POSTROUTING -d "$1" -p udp -m ipvs --vaddr "$2" -j MASQUERADE`
	if out, err := host.Command(ctx, "sh", "-c", script, "sh", Endpoint.Addr().String(), Service.Addr().String()).CombinedOutput(); err != nil {
		return fmt.Errorf("masquerading: %w: %s", err, out)
	}
	return nil
}
