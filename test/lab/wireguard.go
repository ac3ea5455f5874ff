// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"crypto/ecdh"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const wireGuardPort = 51820

// wireGuardKey is a node's private key. Labs have no secrets.
func wireGuardKey(node string) *ecdh.PrivateKey {
	seed := sha256.Sum256([]byte("beeline-lab " + node))
	key, err := ecdh.X25519().NewPrivateKey(seed[:])
	if err != nil {
		panic(err) // any 32 octets are a key (RFC 7748)
	}
	return key
}

// createWireGuard creates a WireGuard device with a peer for each other node; without WireGuard in the kernel a
// persistent tun device, which a process serves (startTunnels).
func (o *overlayPlan) createWireGuard(lab string, handle *netlink.Handle) error {
	device := &netlink.Wireguard{LinkAttrs: o.attributes()}
	err := handle.LinkAdd(device)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return o.createTun(lab, handle)
	}
	if err != nil {
		return fmt.Errorf("creating device %s: %w", device.Name, err)
	}
	if err := inNetNS(netnsPath(lab, o.node), o.configureWireGuard); err != nil {
		return fmt.Errorf("configuring device %s: %w", device.Name, err)
	}
	return setUp(handle, device.Name)
}

func (o *overlayPlan) createTun(lab string, handle *netlink.Handle) error {
	device := &netlink.Tuntap{LinkAttrs: o.attributes(), Mode: netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR}
	// It is created by a file and not by netlink, so on a thread of the namespace.
	if err := inNetNS(netnsPath(lab, o.node), func() error { return netlink.LinkAdd(device) }); err != nil {
		return fmt.Errorf("creating device %s (needs CONFIG_WIREGUARD or CONFIG_TUN): %w", device.Name, err)
	}
	for _, f := range device.Fds {
		f.Close()
	}
	link, err := handle.LinkByName(device.Name)
	if err != nil {
		return err
	}
	if err := handle.LinkSetMTU(link, o.network.MTU()); err != nil {
		return err
	}
	return setUp(handle, device.Name)
}

// Attributes of the generic netlink family "wireguard" (linux/wireguard.h).
const (
	wgSetDevice = 1

	wgDeviceName, wgDeviceKey, wgDevicePort, wgDevicePeers = 2, 3, 6, 8
	wgPeerKey, wgPeerEndpoint, wgPeerAllowed               = 1, 4, 9
	wgAllowedFamily, wgAllowedAddress, wgAllowedLength     = 1, 2, 3
)

// configureWireGuard sets the key, the port and the peers of the device in the current network namespace.
func (o *overlayPlan) configureWireGuard() error {
	family, err := netlink.GenlFamilyGet("wireguard")
	if err != nil {
		return err
	}
	request := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	request.AddData(&nl.Genlmsg{Command: wgSetDevice, Version: 1})
	request.AddData(nl.NewRtAttr(wgDeviceName, nl.ZeroTerminated(o.network.Device())))
	request.AddData(nl.NewRtAttr(wgDeviceKey, wireGuardKey(o.node).Bytes()))
	request.AddData(nl.NewRtAttr(wgDevicePort, nl.Uint16Attr(wireGuardPort)))
	peers := nl.NewRtAttr(wgDevicePeers|unix.NLA_F_NESTED, nil)
	for _, p := range o.peers {
		p.addTo(peers)
	}
	request.AddData(peers)
	_, err = request.Execute(unix.NETLINK_GENERIC, 0)
	return err
}

func (p overlayPeer) addTo(peers *nl.RtAttr) {
	peer := peers.AddRtAttr(unix.NLA_F_NESTED, nil)
	peer.AddRtAttr(wgPeerKey, wireGuardKey(p.name).PublicKey().Bytes())
	endpoint := make([]byte, unix.SizeofSockaddrInet4)
	binary.NativeEndian.PutUint16(endpoint, unix.AF_INET)
	binary.BigEndian.PutUint16(endpoint[2:], wireGuardPort)
	copy(endpoint[4:], p.node.AsSlice())
	peer.AddRtAttr(wgPeerEndpoint, endpoint)
	allowed := peer.AddRtAttr(wgPeerAllowed|unix.NLA_F_NESTED, nil)
	for _, pods := range p.pods {
		one := allowed.AddRtAttr(unix.NLA_F_NESTED, nil)
		one.AddRtAttr(wgAllowedFamily, nl.Uint16Attr(familyOf(pods.Addr())))
		one.AddRtAttr(wgAllowedAddress, pods.Addr().AsSlice())
		one.AddRtAttr(wgAllowedLength, nl.Uint8Attr(uint8(pods.Bits())))
	}
}

func familyOf(a netip.Addr) uint16 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// settings are the same for WireGuard in a process (the UAPI of wg(8)).
func (o *overlayPlan) settings() string {
	var s strings.Builder
	fmt.Fprintf(&s, "private_key=%x\nlisten_port=%d\n", wireGuardKey(o.node).Bytes(), wireGuardPort)
	for _, p := range o.peers {
		fmt.Fprintf(&s, "public_key=%x\nendpoint=%s\n", wireGuardKey(p.name).PublicKey().Bytes(), netip.AddrPortFrom(p.node, wireGuardPort))
		for _, pods := range p.pods {
			fmt.Fprintf(&s, "allowed_ip=%s\n", pods)
		}
	}
	return s.String()
}

// Supports reports why the kernel cannot make the devices of a network; nil if it can, or if something else fails,
// which making the lab then reports.
func Supports(n Network) error {
	if n != NetworkIPIP {
		return nil
	}
	err := withThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		// With an address, or it would equal tunl0, which the kernel makes in each namespace.
		return netlink.LinkAdd(&netlink.Iptun{LinkAttrs: netlink.LinkAttrs{Name: n.Device()}, Local: net.IPv4(192, 0, 2, 1)})
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	return nil
}
