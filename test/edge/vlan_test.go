// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// vlanAddresses are the node's and the fabric's on the VLAN, of each family.
var vlanAddresses = map[string][]netip.Addr{
	"node-a": {netip.MustParseAddr("192.168.105.1"), netip.MustParseAddr("fd00:105::1")},
	"fabric": {netip.MustParseAddr("192.168.105.254"), netip.MustParseAddr("fd00:105::fe")},
}

// Clients are behind a VLAN of the NIC: the VLAN's device serves them, with tc and also with XDP at the NIC,
// which passes tagged frames; clients without a tag are served at the NIC.
func TestClientsBehindAVLAN(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := newWorld(t, "--edge-mode="+mode, allAddresses, "--devices=eth0,eth0.5")
		// Frames keep their tags, as XDP needs it.
		w.must(w.Host("fabric").VLANOffload("node-a", false))
		w.must(w.agent.Host.VLANOffload("eth0", false))
		w.addVLAN("fabric", "node-a")
		w.addVLAN("node-a", "eth0")
		w.must(w.agent.Start())
		w.apply("web", objects(w.public("a1", "b1"))...)
		w.wantDevices("eth0 " + mode + " clients and backends, eth0.5 tc clients")
		for i, untagged := range addresses(w.Host("node-a"), nodePort) {
			for _, network := range []string{"tcp", "udp"} {
				w.wantServed(network, untagged, "a1", "b1")
				w.wantServed(network, netip.AddrPortFrom(vlanAddresses["node-a"][i], nodePort), "a1", "b1")
			}
		}
	})
}

// If the driver strips tags before XDP sees the frames, tc serves, and status says what to do.
func TestDriverThatTakesVLANTags(t *testing.T) {
	w := newWorld(t, "--edge-mode=xdp")
	w.addVLAN("node-a", "eth0")
	w.must(w.agent.Start())
	w.wantMode("tc")
	w.wantExit(3, "ethtool -K eth0 rxvlan off")
	w.must(w.agent.Host.VLANOffload("eth0", false))
	w.wantDevices("eth0 xdp clients")
}

// addVLAN gives a host VLAN 5 on a device, with its addresses and routes to the other side; the client's
// packets use it.
func (w *world) addVLAN(host, device string) {
	w.t.Helper()
	missing := false
	w.must(w.Host(host).Do(func() error {
		parent, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex = device+".5", parent.Attrs().Index
		vlan := &netlink.Vlan{LinkAttrs: attrs, VlanId: 5, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}
		if err := netlink.LinkAdd(vlan); errors.Is(err, unix.EOPNOTSUPP) {
			missing = true
			return nil
		} else if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(vlan); err != nil {
			return err
		}
		for name, addresses := range vlanAddresses {
			for _, a := range addresses {
				if name == host {
					err = netlink.AddrAdd(vlan, &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice()), Flags: nodad(a)})
				} else {
					err = netlink.RouteAdd(&netlink.Route{Dst: netlink.NewIPNet(a.AsSlice()), LinkIndex: vlan.Attrs().Index, Scope: scope(a)})
				}
				if err != nil {
					return err
				}
			}
		}
		return nil
	}))
	if missing {
		w.t.Skip("the kernel has no VLAN devices (CONFIG_VLAN_8021Q)")
	}
}

func nodad(a netip.Addr) int {
	if a.Is6() {
		return unix.IFA_F_NODAD
	}
	return 0
}

func scope(a netip.Addr) netlink.Scope {
	if a.Is4() {
		return netlink.SCOPE_LINK
	}
	return netlink.SCOPE_UNIVERSE
}
