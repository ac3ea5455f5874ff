// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/test/lab"
)

// Constants of IPVS's generic netlink family (linux/ip_vs.h).
const (
	ipvsFamily     = "IPVS"
	ipvsVersion    = 1
	ipvsNewService = 1
	ipvsNewDest    = 5

	ipvsService = 1 // attributes of a command, with nested ones below
	ipvsDest    = 2

	ipvsServiceFamily    = 1
	ipvsServiceProtocol  = 2
	ipvsServiceAddress   = 3
	ipvsServicePort      = 4
	ipvsServiceScheduler = 6
	ipvsServiceFlags     = 7
	ipvsServiceTimeout   = 8
	ipvsServiceNetmask   = 9

	ipvsDestAddress = 1
	ipvsDestPort    = 2
	ipvsDestMethod  = 3
	ipvsDestWeight  = 4
	ipvsDestUpper   = 5
	ipvsDestLower   = 6
)

// How IPVS forwards a packet to a destination (IP_VS_CONN_F_*).
const (
	ipvsMasquerade = 0
	ipvsTunnel     = 2
	ipvsDirect     = 3
)

// HasIPVS reports whether the kernel has IPVS, and the module is loaded.
func HasIPVS() bool {
	_, err := netlink.GenlFamilyGet(ipvsFamily)
	return err == nil
}

// addIPVS creates a virtual service for UDP over IPv4 with one destination on a host.
func addIPVS(host *lab.Host, service, endpoint netip.AddrPort, method uint32) error {
	return host.Do(func() error {
		return errors.Join(
			askIPVS(ipvsNewService, ipvsServiceAttribute(service)),
			askIPVS(ipvsNewDest, ipvsServiceAttribute(service), ipvsDestAttribute(endpoint, method)),
		)
	})
}

// askIPVS sends a command to the calling thread's network namespace.
func askIPVS(command byte, attributes ...nl.NetlinkRequestData) error {
	family, err := netlink.GenlFamilyGet(ipvsFamily)
	if err != nil {
		return fmt.Errorf("the kernel's IPVS (module ip_vs): %w", err)
	}
	request := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	request.AddData(genericHeader{command, ipvsVersion})
	for _, a := range attributes {
		request.AddData(a)
	}
	if _, err := request.Execute(unix.NETLINK_GENERIC, 0); err != nil {
		return fmt.Errorf("IPVS, command %d: %w", command, err)
	}
	return nil
}

func ipvsServiceAttribute(service netip.AddrPort) *nl.RtAttr {
	a := nl.NewRtAttr(ipvsService|unix.NLA_F_NESTED, nil)
	a.AddRtAttr(ipvsServiceFamily, nl.Uint16Attr(unix.AF_INET))
	a.AddRtAttr(ipvsServiceProtocol, nl.Uint16Attr(unix.IPPROTO_UDP))
	a.AddRtAttr(ipvsServiceAddress, ipvsAddress(service.Addr()))
	a.AddRtAttr(ipvsServicePort, binary.BigEndian.AppendUint16(nil, service.Port()))
	a.AddRtAttr(ipvsServiceScheduler, nl.ZeroTerminated("rr"))
	a.AddRtAttr(ipvsServiceFlags, make([]byte, 8)) // with their mask
	a.AddRtAttr(ipvsServiceTimeout, nl.Uint32Attr(0))
	a.AddRtAttr(ipvsServiceNetmask, bytes.Repeat([]byte{0xff}, 4))
	return a
}

func ipvsDestAttribute(endpoint netip.AddrPort, method uint32) *nl.RtAttr {
	a := nl.NewRtAttr(ipvsDest|unix.NLA_F_NESTED, nil)
	a.AddRtAttr(ipvsDestAddress, ipvsAddress(endpoint.Addr()))
	a.AddRtAttr(ipvsDestPort, binary.BigEndian.AppendUint16(nil, endpoint.Port()))
	a.AddRtAttr(ipvsDestMethod, nl.Uint32Attr(method))
	a.AddRtAttr(ipvsDestWeight, nl.Uint32Attr(1))
	a.AddRtAttr(ipvsDestUpper, nl.Uint32Attr(0)) // no connection limits
	a.AddRtAttr(ipvsDestLower, nl.Uint32Attr(0))
	return a
}

// ipvsAddress is union nf_inet_addr.
func ipvsAddress(a netip.Addr) []byte {
	return append(a.AsSlice(), make([]byte, 16)...)[:16]
}

// ipvsCounts are a host's IPVS counters: new connections, and packets of clients.
func ipvsCounts(host *lab.Host) (connections, packets uint64, err error) {
	err = host.Do(func() error {
		// The file with the sum over all CPUs is updated only every two seconds.
		text, err := os.ReadFile("/proc/thread-self/net/ip_vs_stats_percpu")
		if err != nil {
			return fmt.Errorf("IPVS: %w", err)
		}
		connections, packets, err = parseIPVSCounts(string(text))
		return err
	})
	return connections, packets, err
}

// parseIPVSCounts sums the lines of CPUs: number, connections, packets in and out, bytes in and out, all
// hexadecimal.
func parseIPVSCounts(text string) (connections, packets uint64, err error) {
	cpus := 0
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 6 {
			continue
		}
		if _, err := strconv.ParseUint(fields[0], 16, 32); err != nil {
			continue // a heading, or the sums
		}
		c, err := strconv.ParseUint(fields[1], 16, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("IPVS's counters: %w in %q", err, line)
		}
		p, err := strconv.ParseUint(fields[2], 16, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("IPVS's counters: %w in %q", err, line)
		}
		connections, packets, cpus = connections+c, packets+p, cpus+1
	}
	if cpus == 0 {
		return 0, 0, fmt.Errorf("IPVS's counters have no line of a CPU:\n%s", text)
	}
	return connections, packets, nil
}

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
		if err := harness.RunOn(ctx, host, "", command...); err != nil {
			return err
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
	return harness.RunOn(ctx, host, "", "sh", "-c", script, "sh", Endpoint.Addr().String(), Service.Addr().String())
}
