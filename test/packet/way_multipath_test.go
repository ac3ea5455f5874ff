// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// If a route has several next hops at one device, all packets of a flow take the same one, whether the next hop
// is cached or was just looked up.
func TestFlowKeepsItsNextHop(t *testing.T) {
	for i, f := range families {
		nodes := [][]string{{"192.168.101.3", "192.168.101.4"}, {"fd00:101::3", "fd00:101::4"}}[i]
		for _, order := range [][]string{nodes, {nodes[1], nodes[0]}} {
			w := newScene(t)
			w.enter(t)
			w.attachIngress(t)
			watch := openCaptureOf(t, int(w.index["eth1-far"]))
			must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: int(w.index["eth1"]), State: netlink.NUD_PERMANENT,
				IP: net.ParseIP(nodes[1]), HardwareAddr: nodeDMAC[:]}))
			_, to, err := net.ParseCIDR(prefixOf(f.behindEth1).String())
			must(t, err)
			route := &netlink.Route{Dst: to}
			for _, via := range order {
				route.MultiPath = append(route.MultiPath, &netlink.NexthopInfo{LinkIndex: int(w.index["eth1"]), Gw: net.ParseIP(via)})
			}
			must(t, netlink.RouteDel(&netlink.Route{Dst: to}))
			must(t, netlink.RouteAdd(route))
			taken := map[[6]byte]int{}
			for packet := range 50 {
				w.sendFrame(t, "eth0-far", f.question(udp, toEth1).frame(t))
				if mac := watch.nextHopOf(t, f.behindEth1); packet > 0 { // the first packet's source was not known yet
					taken[mac]++
				}
			}
			if len(taken) != 1 {
				t.Errorf("%s: the packets of one flow go to several next hops of %v: %x", f.name, order, taken)
			}
		}
	}
}

// sendFrame has a device send a frame.
func (w *world) sendFrame(t testing.TB, device string, frame []byte) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: int(w.index[device]), Protocol: htons(uint16(frame[12])<<8 | uint16(frame[13]))}))
}

// nextHopOf is the destination MAC address of the next packet to an address.
func (c capture) nextHopOf(t testing.TB, to netip.Addr) (mac [6]byte) {
	t.Helper()
	frame := make([]byte, 2000)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		n, err := c.next(frame)
		if err != nil {
			t.Fatalf("waiting for a packet to %v: %v", to, err)
		}
		at := 30
		if to.Is6() {
			at = 38
		}
		if length := len(to.AsSlice()); n >= at+length && bytes.Equal(frame[at:at+length], to.AsSlice()) {
			copy(mac[:], frame)
			return mac
		}
	}
	t.Fatalf("no packet to %v has arrived", to)
	return mac
}
