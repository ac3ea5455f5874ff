// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// soon repeats a frame until the result is as wanted: a change of a route takes effect shortly, not at once.
func (w *world) soon(t testing.TB, at hook, frame []byte, action model.Action, want []byte, what string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		got := w.run(t, at, frame)
		if w.met(at, got, model.Result{Action: action, Frame: want}) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: after a minute the action is still %v, want %v: %s", at, got.Action, action, what)
		}
	}
}

// towards is the route of a prefix through a gateway, as newNetwork has created it or as it is to be.
func (n *network) towards(to, via, device string, mtu int) *netlink.Route {
	_, dst, err := net.ParseCIDR(to)
	if err != nil {
		panic(err)
	}
	return &netlink.Route{LinkIndex: int(n.index[device]), Dst: dst, Gw: net.ParseIP(via), MTU: mtu, MTULock: mtu != 0}
}

// prefixOf is the prefix of an address's route.
func prefixOf(a netip.Addr) netip.Prefix {
	for _, r := range routes {
		if p := netip.MustParsePrefix(r.to); p.Contains(a) {
			return p
		}
	}
	panic(a)
}

// The next hops of a SNAT flow are cached in both directions for a short time: a neighbour's new address takes
// effect soon after, for continuing flows and for new ones.
func TestWayToNeighbourChanges(t *testing.T) {
	w := newScene(t)
	w.enter(t)
	moved := [6]byte{2, 0, 0, 0, 0, 0x1b}
	for _, f := range families {
		w.forget(t)
		fl := w.flow(t, atXDP, f, udp)
		own := on(f.own, fl.own.DestinationPort)
		answer := reply(on(f.remote, targetPort), own, udp)
		fl.asks(t, 0)
		fl.says(t, 0)
		gateway := netip.MustParseAddr(map[bool]string{true: "192.168.100.254", false: "fd00:100::fe"}[f.client.Is4()])
		for _, side := range []struct {
			neighbour netip.Addr
			usual     [6]byte
			frame     []byte
			sent      func(mac [6]byte) []byte
		}{
			{f.node, nodeBMAC, fl.question.frame(t), func(mac [6]byte) []byte {
				return fl.question.forwarded(atXDP, own, on(f.remote, targetPort), mac).frame(t)
			}},
			{gateway, gatewayMAC, answer.frame(t), func(mac [6]byte) []byte {
				return answer.forwarded(atXDP, fl.question.to, fl.question.from, mac).frame(t)
			}},
		} {
			for _, mac := range [][6]byte{side.usual, moved, side.usual} {
				must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: int(w.index["eth0"]), State: netlink.NUD_PERMANENT,
					IP: side.neighbour.AsSlice(), HardwareAddr: mac[:]}))
				w.soon(t, atXDP, side.frame, model.ActionSend, side.sent(mac), f.name+", another neighbour")
			}
		}
		// A new flow to the same backend.
		w.forget(t)
		must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: int(w.index["eth0"]), State: netlink.NUD_PERMANENT,
			IP: f.node.AsSlice(), HardwareAddr: moved[:]}))
		w.soon(t, atXDP, fl.question.frame(t), model.ActionSend,
			fl.question.forwarded(atXDP, own, on(f.remote, targetPort), moved).frame(t), f.name+", a new flow")
		must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: int(w.index["eth0"]), State: netlink.NUD_PERMANENT,
			IP: f.node.AsSlice(), HardwareAddr: nodeBMAC[:]}))
	}
}

// The same for routes: one that gets a smaller MTU, moves to another device, which XDP leaves to tc, or is
// removed.
func TestWayChanges(t *testing.T) {
	for _, back := range []bool{false, true} {
		for _, f := range families {
			w := newScene(t)
			w.enter(t)
			fl := w.flow(t, atXDP, f, udp)
			own := on(f.own, fl.own.DestinationPort)
			fl.asks(t, 0)
			fl.says(t, 0)
			via, other, size := f.node.String(), "192.168.101.3", narrowMTU
			p, from, to, mac := fl.question, own, on(f.remote, targetPort), nodeBMAC
			asked := f.vip
			if back {
				p = reply(on(f.remote, targetPort), own, udp)
				from, to, mac = fl.question.to, fl.question.from, gatewayMAC
				via, asked = "192.168.100.254", f.own
			}
			if f.client.Is6() {
				other = "fd00:101::3"
				if back {
					via = "fd00:100::fe"
				}
			}
			prefix := prefixOf(to.Addr()).String()
			p.dontFragment = true
			big := p.sized(t, size+1)
			sent := func(p probe) []byte { return p.forwarded(atXDP, from, to, mac).frame(t) }
			w.soon(t, atXDP, big.frame(t), model.ActionSend, sent(big), f.name+", the usual route")

			must(t, netlink.RouteReplace(w.towards(prefix, via, "eth0", size)))
			w.soon(t, atXDP, big.frame(t), model.ActionSend,
				big.icmpAnswer(t, asked, [2]uint8{3, 4}, [2]uint8{2, 0}, uint32(size)), f.name+", a route with a small MTU")
			w.leaves(t, atXDP, p.frame(t), model.ActionSend, sent(p))

			must(t, netlink.RouteReplace(w.towards(prefix, via, "eth0", 0)))
			w.soon(t, atXDP, big.frame(t), model.ActionSend, sent(big), f.name+", the usual route again")

			must(t, netlink.RouteReplace(w.towards(prefix, other, "eth1", 0)))
			w.soon(t, atXDP, p.frame(t), model.ActionPass, p.frame(t), f.name+", a route by another device")

			must(t, netlink.RouteDel(w.towards(prefix, other, "eth1", 0)))
			w.soon(t, atXDP, p.frame(t), model.ActionSend, p.icmpAnswer(t, asked, [2]uint8{3, 0}, [2]uint8{1, 0}, 0), f.name+", no way")
			lost, end := uint64(1), f.remote
			if back { // a backend's reply
				lost, end = 0, f.client
			}
			w.loses(t, end, bpf.LostWithoutRoute, lost, end, func() { w.run(t, atXDP, p.frame(t)) })
			// An ICMP error on the same way is about a packet of the other end.
			by, about := f.client, reply(on(f.remote, targetPort), own, udp).translated(fl.question.to, fl.question.from)
			if back {
				by, about = f.remote, fl.question.translated(own, on(f.remote, targetPort))
			}
			w.loses(t, end, bpf.LostWithoutRoute, lost, end, func() {
				w.drops(t, atXDP, errorsOf(f, about)[0].frame(t, probe{}, by, about.from.Addr()), model.DropNoRoute)
			})

			must(t, netlink.RouteAdd(w.towards(prefix, via, "eth0", 0)))
			w.soon(t, atXDP, p.frame(t), model.ActionSend, sent(p), f.name+", the usual route in the end")

			// The device is down, and so its routes are gone.
			link, err := netlink.LinkByName("eth0")
			must(t, err)
			must(t, netlink.LinkSetDown(link))
			w.soon(t, atXDP, p.frame(t), model.ActionSend, p.icmpAnswer(t, asked, [2]uint8{3, 0}, [2]uint8{1, 0}, 0), f.name+", a device that is down")
		}
	}
}

// At tc the kernel finds the next hop of a packet, and notes that the neighbour is in use. For a moment,
// packets go there without asking it, in both directions and by another device, too; then the kernel is asked
// again. If the neighbour's address changes, later packets go to the new one.
func TestNextHopIsRemembered(t *testing.T) {
	w := newScene(t)
	w.enter(t)
	moved := [6]byte{2, 0, 0, 0, 0, 0x1b}
	for _, f := range families {
		fl := w.flow(t, atIngress, f, udp)
		own := on(f.own, fl.own.DestinationPort)
		answer := reply(on(f.remote, targetPort), own, udp)
		fl.asks(t, 0)
		fl.says(t, 0)
		to := func(p probe, device string, mac [6]byte) []byte {
			p.source, p.target = w.mac[device], mac
			return p.frame(t)
		}
		asked := fl.question.forwarded(atIngress, own, on(f.remote, targetPort), nodeBMAC)
		answered := answer.forwarded(atIngress, fl.question.to, fl.question.from, gatewayMAC)
		w.turns(t, fl.question.frame(t), asked.frame(t), to(asked, "eth0", nodeBMAC))
		w.turns(t, answer.frame(t), answered.frame(t), to(answered, "eth0", gatewayMAC))
		far := f.question(udp, toEth1)
		port := w.snatPort(t, atIngress, far.frame(t))
		from := on(w.tables().Devices[w.index["eth1"]][0], port)
		if f.client.Is6() {
			from = on(w.tables().Devices[w.index["eth1"]][1], port)
		}
		crossed := far.forwarded(atIngress, from, on(f.behindEth1, targetPort), nodeCMAC)
		w.turns(t, far.frame(t), crossed.frame(t), to(crossed, "eth1", nodeCMAC))
		must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: int(w.index["eth0"]), State: netlink.NUD_PERMANENT,
			IP: f.node.AsSlice(), HardwareAddr: moved[:]}))
		w.turns(t, fl.question.frame(t), asked.frame(t), to(asked, "eth0", moved))
		must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: int(w.index["eth0"]), State: netlink.NUD_PERMANENT,
			IP: f.node.AsSlice(), HardwareAddr: nodeBMAC[:]}))
	}
}

// turns runs a frame at tc until it has become one, then the other, and then the one again.
func (w *world) turns(t *testing.T, frame, one, other []byte) {
	t.Helper()
	for _, want := range [][]byte{one, other, one} {
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			got := w.run(t, atIngress, frame)
			if got.Action == model.ActionSend && bytes.Equal(got.Frame, want) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("for a minute no packet has become\n%sthe last was\n%s", hex.Dump(want), hex.Dump(got.Frame))
			}
		}
	}
}

// A cached next hop expires after 50 milliseconds, whatever the kernel's HZ is, and not before a jiffy of the
// slowest.
func TestWayExpires(t *testing.T) {
	w := newScene(t)
	w.enter(t)
	onOneCPU(t)
	f := families[0]
	fl := w.flow(t, atXDP, f, udp)
	own := on(f.own, fl.own.DestinationPort)
	frame := fl.question.frame(t)
	sent := func(mac [6]byte) []byte {
		return fl.question.forwarded(atXDP, own, on(f.remote, targetPort), mac).frame(t)
	}
	move := func(mac [6]byte) {
		must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: int(w.index["eth0"]), State: netlink.NUD_PERMANENT,
			IP: f.node.AsSlice(), HardwareAddr: mac[:]}))
	}
	moved := [6]byte{2, 0, 0, 0, 0, 0x1b}
	for _, test := range []struct {
		age  uint32
		mac  [6]byte
		want string
	}{{0, nodeBMAC, "remembered"}, {20, nodeBMAC, "remembered"}, {50, moved, "looked up again"}} {
		for tries := 1; ; tries++ {
			move(nodeBMAC)
			w.ageWays(t, 1000)
			began := time.Now()
			w.leaves(t, atXDP, frame, model.ActionSend, sent(nodeBMAC))
			move(moved)
			w.ageWays(t, test.age)
			got := w.run(t, atXDP, frame)
			if bytes.Equal(got.Frame, sent(test.mac)) {
				break
			}
			if took := time.Since(began); took < 15*time.Millisecond || tries == 100 {
				t.Fatalf("after %v a cached next hop aged by %d ms was not %s", took, test.age, test.want)
			}
		}
	}
}

// ageWays makes all cached next hops so many milliseconds older.
func (w *world) ageWays(t testing.TB, milliseconds uint32) {
	t.Helper()
	const size, since = 64, 32 // struct way
	for i := range w.maps[bpf.EdgeTCMapFibCache].MaxEntries() {
		var perCPU [][size]byte
		must(t, w.maps[bpf.EdgeTCMapFibCache].Lookup(i, &perCPU))
		used := false
		for n := range perCPU {
			at := perCPU[n][since:]
			used = used || perCPU[n][size-13] != 0 // its kind
			binary.NativeEndian.PutUint32(at, binary.NativeEndian.Uint32(at)-milliseconds)
		}
		if used {
			must(t, w.maps[bpf.EdgeTCMapFibCache].Put(i, perCPU))
		}
	}
}
