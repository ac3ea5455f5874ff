// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/hex"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// The neighbours of a tunnel have addresses that look like MAC addresses and are not, and a tunnel to many
// nodes takes the remote end from each packet's route: it drops packets without one. So the kernel is asked for
// each packet that leaves there.
func TestNextHopOfTunnelIsNotRemembered(t *testing.T) {
	w := newScene(t)
	w.enter(t)
	index := newTunnel(t)
	own := netip.MustParseAddr("10.10.1.1")
	var row bpf.EdgeDevice
	row.Source4, row.Outer4 = bpf.AddressFrom(own), bpf.AddressFrom(own)
	w.put(t, bpf.EdgeTCMapEdgeDevices, index, row)
	f := families[0]
	prefix := prefixOf(f.behindEth1)
	_, to, err := net.ParseCIDR(prefix.String())
	must(t, err)
	must(t, netlink.RouteReplace(&netlink.Route{LinkIndex: int(index), Dst: to, Gw: net.IPv4(192, 168, 101, 3), Flags: int(netlink.FLAG_ONLINK)}))
	must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: int(index), State: netlink.NUD_PERMANENT,
		IP: net.IPv4(192, 168, 101, 3), HardwareAddr: net.HardwareAddr{192, 168, 101, 3}}))
	for _, p := range []probe{f.question(udp, toEth1), f.question(tcp, toEth1)} {
		for i := range 50 {
			got := w.run(t, atIngress, p.frame(t))
			if got.Action != model.ActionSend {
				t.Fatalf("packet %d: action %v", i, got.Action)
			}
			if want := p.frame(t)[:12]; !bytes.Equal(got.Frame[:12], want) {
				t.Fatalf("packet %d has the MAC addresses\n%swant its original ones", i, hex.Dump(got.Frame[:12]))
			}
		}
	}
}

// newTunnel is the index of a device whose neighbours have addresses as in IP over IP (ARPHRD_TUNNEL), which
// needs no kernel module.
func newTunnel(t testing.TB) uint32 {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	asked, err := unix.NewIfreq("tunnel")
	must(t, err)
	asked.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	must(t, unix.IoctlIfreq(fd, unix.TUNSETIFF, asked))
	must(t, unix.IoctlSetInt(fd, unix.TUNSETLINK, unix.ARPHRD_TUNNEL))
	link, err := netlink.LinkByName("tunnel")
	must(t, err)
	must(t, netlink.LinkSetUp(link))
	return uint32(link.Attrs().Index)
}
