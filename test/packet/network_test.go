// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/packet/model"
)

// The node: packets arrive at eth0; clients and node-b are behind it. eth1 leads to node-c, eth2 to node-d, and
// eth2 has no address to use as a source.
//
//	10.10.1.0/24  pods of this node
//	10.10.2.0/24  pods of node-b
//	10.10.3.0/24  pods of node-c, behind eth1
//	10.10.4.0/24  pods of a node whose neighbour entry is missing
//	10.10.5.0/24  pods of node-d, behind eth2
//	10.10.6.0/24  pods of node-b behind an MTU of 1280 bytes
//	10.10.9.0/24  pods of a node without a route
//
// and the same with fd00:10:1::/64 and so on. Clients in 192.168.201.0/24 and fd00:201::/64 are behind the
// small MTU, too.
type network struct {
	file  *os.File
	index map[string]uint32
	mac   map[string][6]byte
	hops  map[netip.Prefix]*model.NextHop
}

var (
	gatewayMAC = [6]byte{2, 0, 0, 0, 0, 0xfe}
	nodeBMAC   = [6]byte{2, 0, 0, 0, 0, 0x0b}
	nodeCMAC   = [6]byte{2, 0, 0, 0, 0, 0x0c}
	nodeDMAC   = [6]byte{2, 0, 0, 0, 0, 0x0d}
)

var devices = []struct {
	name      string
	addresses []string
	neighbour map[string][6]byte
}{
	{"eth0", []string{"192.168.100.1/24", "fd00:100::1/64"}, map[string][6]byte{
		"192.168.100.254": gatewayMAC, "fd00:100::fe": gatewayMAC,
		"192.168.100.2": nodeBMAC, "fd00:100::2": nodeBMAC}},
	{"eth1", []string{"192.168.101.1/24", "fd00:101::1/64"}, map[string][6]byte{
		"192.168.101.3": nodeCMAC, "fd00:101::3": nodeCMAC}},
	{"eth2", []string{"192.168.102.1/24", "fd00:102::1/64"}, map[string][6]byte{
		"192.168.102.4": nodeDMAC, "fd00:102::4": nodeDMAC}},
}

var routes = []struct {
	to, via, device string
	mac             [6]byte
	known           bool
	mtu             int
}{
	{"192.168.200.0/24", "192.168.100.254", "eth0", gatewayMAC, true, 0},
	{"fd00:200::/64", "fd00:100::fe", "eth0", gatewayMAC, true, 0},
	{"10.10.2.0/24", "192.168.100.2", "eth0", nodeBMAC, true, 0},
	{"fd00:10:2::/64", "fd00:100::2", "eth0", nodeBMAC, true, 0},
	{"10.10.3.0/24", "192.168.101.3", "eth1", nodeCMAC, true, 0},
	{"fd00:10:3::/64", "fd00:101::3", "eth1", nodeCMAC, true, 0},
	{"10.10.4.0/24", "192.168.100.99", "eth0", [6]byte{}, false, 0},
	{"fd00:10:4::/64", "fd00:100::99", "eth0", [6]byte{}, false, 0},
	{"10.10.5.0/24", "192.168.102.4", "eth2", nodeDMAC, true, 0},
	{"fd00:10:5::/64", "fd00:102::4", "eth2", nodeDMAC, true, 0},
	{"10.10.6.0/24", "192.168.100.2", "eth0", nodeBMAC, true, narrowMTU},
	{"fd00:10:6::/64", "fd00:100::2", "eth0", nodeBMAC, true, narrowMTU},
	{"10.96.0.11/32", "192.168.100.254", "eth0", gatewayMAC, true, 0},
	{"fd00:96::11/128", "fd00:100::fe", "eth0", gatewayMAC, true, 0},
	{"192.168.201.0/24", "192.168.100.254", "eth0", gatewayMAC, true, narrowMTU},
	{"fd00:201::/64", "fd00:100::fe", "eth0", gatewayMAC, true, narrowMTU},
}

const narrowMTU = 1280

// newNetwork creates the node's network in a namespace of its own, and leaves the calling goroutine in it, on a
// thread that ends with it.
func newNetwork(t testing.TB) *network {
	t.Helper()
	runtime.LockOSThread()
	must(t, unix.Unshare(unix.CLONE_NEWNET))
	file, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	must(t, err)
	n := &network{file, map[string]uint32{}, map[string][6]byte{}, map[netip.Prefix]*model.NextHop{}}
	for _, sysctl := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		must(t, os.WriteFile("/proc/sys/net/"+sysctl, []byte("1"), 0))
	}
	for i, d := range devices {
		n.addDevice(t, i, d.name, d.addresses, d.neighbour)
	}
	for _, r := range routes {
		n.addRoute(t, r.to, r.via, r.device, r.mac, r.known, r.mtu)
	}
	return n
}

func (n *network) addDevice(t testing.TB, i int, name string, addresses []string, neighbours map[string][6]byte) {
	t.Helper()
	mac := [6]byte{2, 0, 0, 0, 1, byte(i)}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: mac[:], MTU: 9000},
		PeerName: name + "-far"}
	must(t, netlink.LinkAdd(veth))
	for _, end := range []string{name + "-far", name} {
		link, err := netlink.LinkByName(end)
		must(t, err)
		must(t, netlink.LinkSetUp(link))
		n.index[end] = uint32(link.Attrs().Index)
	}
	for _, end := range []string{name + "-far", name} {
		must(t, running(end))
	}
	n.mac[name] = mac
	for _, a := range addresses {
		address, err := netlink.ParseAddr(a)
		must(t, err)
		address.Flags = unix.IFA_F_NODAD
		must(t, netlink.AddrAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: int(n.index[name])}}, address))
		must(t, local(address.IP))
	}
	for a, far := range neighbours {
		must(t, netlink.NeighAdd(&netlink.Neigh{LinkIndex: int(n.index[name]), State: netlink.NUD_PERMANENT,
			IP: net.ParseIP(a), HardwareAddr: far[:]}))
		at := netip.MustParseAddr(a)
		n.hops[netip.PrefixFrom(at, at.BitLen())] = &model.NextHop{Device: n.index[name], Source: mac, Destination: far, Known: true}
	}
}

// running waits until a device forwards what it sends: the kernel gives it a queue some time after its peer is
// up, and drops everything until then.
func running(device string) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		link, err := netlink.LinkByName(device)
		if err != nil || link.Attrs().OperState == netlink.OperUp {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("device %s is still %v", device, link.Attrs().OperState)
		}
	}
}

// local waits until the kernel delivers packets to an address of its own: it finishes IPv6 addresses in the
// background, even without duplicate address detection.
func local(address net.IP) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		routes, err := netlink.RouteGet(address)
		if err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("address %s is still not local: %v, %w", address, routes, err)
		}
	}
}

func (n *network) addRoute(t testing.TB, to, via, device string, mac [6]byte, known bool, mtu int) {
	t.Helper()
	prefix := netip.MustParsePrefix(to)
	_, dst, err := net.ParseCIDR(to)
	must(t, err)
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: int(n.index[device]), Dst: dst, Gw: net.ParseIP(via),
		MTU: mtu, MTULock: mtu != 0})) // an unlocked MTU applies only to what the node itself sends
	n.hops[prefix] = &model.NextHop{Device: n.index[device], Source: n.mac[device], Destination: mac, Known: known, MTU: mtu}
}

// enter moves the calling goroutine into the namespace, on a thread that ends with it.
func (n *network) enter(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	must(t, unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET))
}

// route is the kernel's route to an address.
func (n *network) route(a netip.Addr) *model.NextHop {
	for prefix, hop := range n.hops {
		if prefix.Contains(a) {
			return hop
		}
	}
	for _, d := range devices { // other neighbours are not resolved yet
		for _, text := range d.addresses {
			own := netip.MustParsePrefix(text)
			b := a.AsSlice()
			if last := b[len(b)-1]; own.Contains(a) && a != own.Addr() && a != own.Masked().Addr() && (a.Is6() || last != 255) {
				return &model.NextHop{Device: n.index[d.name], Source: n.mac[d.name]}
			}
		}
	}
	return nil
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
