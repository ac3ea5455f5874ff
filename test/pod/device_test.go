// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	shortcut "beeline.io/beeline/internal/shortcut/pod"
	"beeline.io/beeline/test/lab"
)

// A device is one of a host.
type device struct {
	Index uint32
	MTU   int
	MAC   [6]byte
}

func (w *world) device(host, name string) device {
	w.t.Helper()
	nl, link, err := w.Host(host).OpenDevice(name)
	w.must(err)
	defer nl.Close()
	a := link.Attrs()
	d := device{Index: uint32(a.Index), MTU: a.MTU}
	copy(d.MAC[:], a.HardwareAddr) // zeros for a netkit device of layer 3
	return d
}

// rowOf is the row that a pod of node-a should have. gateway is the device whose MAC address its packets to others are
// for; empty: its own.
func (w *world) rowOf(pod, gateway string) shortcut.Row {
	w.t.Helper()
	own := w.device("node-a", pod)
	row := shortcut.Row{Device: own.Index, Mtu: uint16(own.MTU), Mac: w.device(pod, "eth0").MAC, Gateway: own.MAC}
	if gateway != "" {
		row.Gateway = w.device("node-a", gateway).MAC
	}
	if w.Shape.Pods == lab.PodsNetkit {
		row.L3 = 1
	}
	return row
}

// netnsName is the name of a host's network namespace for ip(8).
func netnsName(h *lab.Host) string { return filepath.Base(h.NetNS) }

// askOnce sends one datagram, and waits for the answer for a tenth of a second.
func (w *world) askOnce(host string, to netip.AddrPort) (lab.Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	return w.Host(host).Request(ctx, "udp", to.String(), "hello")
}

// meet has a node send to pods (meetPods).
func (w *world) meet(node string, pods ...string) {
	w.t.Helper()
	for _, pod := range pods {
		for _, addr := range addresses(w.Host(pod), 0) {
			w.eventually(node+" reaches "+addr.String(), func() bool {
				got, err := w.echo(node, addr.Addr(), 0)
				return err == nil && got.isReply
			})
		}
	}
}

// announce broadcasts a gratuitous ARP request (RFC 5227 section 3) and an unsolicited neighbour advertisement
// (RFC 4861 section 7.2.6) for the addresses of a pod.
func (w *world) announce(namespace string, pod *lab.Host) {
	w.t.Helper()
	own := w.device(namespace, "eth0")
	fd, err := w.Host(namespace).Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	w.must(err)
	defer unix.Close(fd)
	ip := pod.Addr4.As4()
	arp := append(net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, own.MAC[:]...)
	arp = append(arp, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
	arp = append(append(arp, own.MAC[:]...), ip[:]...)
	arp = append(append(arp, 0, 0, 0, 0, 0, 0), ip[:]...)
	for _, packet := range [][]byte{arp, w.advertisement(own.MAC, pod.Addr6)} {
		w.must(os.NewSyscallError("sendto", unix.Sendto(fd, packet, 0, &unix.SockaddrLinklayer{Ifindex: int(own.Index)})))
	}
}

func (w *world) advertisement(own [6]byte, addr netip.Addr) []byte {
	w.t.Helper()
	eth := &layers.Ethernet{SrcMAC: own[:], DstMAC: net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, EthernetType: layers.EthernetTypeIPv6}
	ip := &layers.IPv6{Version: 6, HopLimit: 255, NextHeader: layers.IPProtocolICMPv6, SrcIP: addr.AsSlice(), DstIP: net.ParseIP("ff02::1")}
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeNeighborAdvertisement, 0)}
	w.must(icmp.SetNetworkLayerForChecksum(ip))
	const override = 0x20
	advertised := &layers.ICMPv6NeighborAdvertisement{
		Flags: override, TargetAddress: addr.AsSlice(), Options: layers.ICMPv6Options{{Type: layers.ICMPv6OptTargetAddress, Data: own[:]}},
	}
	return w.serialize(eth, ip, icmp, advertised)
}

// serialize fills in lengths and checksums.
func (w *world) serialize(all ...gopacket.SerializableLayer) []byte {
	w.t.Helper()
	buffer := gopacket.NewSerializeBuffer()
	w.must(gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...))
	return buffer.Bytes()
}
