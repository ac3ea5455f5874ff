// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A change of the router or the server under flows that are short-cut.
type change struct {
	name string
	// kinds of flows that it does not end.
	kinds []kind
	// datagrams means only those: a connection waits longer and longer before it sends again.
	datagrams bool
	before    func(*world) // before the flows begin
	do        func(*world)
	// check runs while flows continue; nil: nothing.
	check func(*world, *flow)
	undo  func(*world)
	limit time.Duration // until flows continue
}

// changes is about flows that take another way, or none: as on the stack, within a second.
func changes(w *world) {
	for _, c := range everyChange {
		w.t.Run(c.name, func(t *testing.T) { w.in(t).changed(c) })
	}
	for _, f := range families {
		w.t.Run(fmt.Sprintf("new drop rule, %s", f), func(t *testing.T) { w.in(t).dropRule(f) })
		w.t.Run(fmt.Sprintf("deleted conntrack entry, %s", f), func(t *testing.T) { w.in(t).forgotten(f) })
		w.t.Run(fmt.Sprintf("smaller MTU, %s", f), func(t *testing.T) { w.in(t).smallerMTU(f) })
		w.t.Run(fmt.Sprintf("next hop is unknown at first, %s", f), func(t *testing.T) { w.in(t).unresolved(f) })
	}
}

var everyChange = []change{
	{
		name: "server's MAC address, announced", kinds: []kind{plain, both}, limit: soon,
		do: func(w *world) { w.setMAC("server", "eth0", net.HardwareAddr{2, 0, 0, 0, 9, 1}) },
	},
	{
		name: "server's MAC address, not announced", kinds: []kind{plain, both}, datagrams: true, limit: 5 * soon,
		before: func(w *world) { w.probeSoon("s0") },
		do: func(w *world) {
			w.sysctl("server", "ipv4/conf/all/arp_notify=0", "ipv6/conf/all/ndisc_notify=0", "ipv6/conf/eth0/ndisc_notify=0")
			w.setMAC("server", "eth0", net.HardwareAddr{2, 0, 0, 0, 9, 2})
			w.sysctl("server", announcing...)
		},
	},
	{
		name: "other next hop", kinds: []kind{plain, dnat}, limit: soon,
		do:    func(w *world) { w.routeTargets(networkServer1) },
		check: func(w *world, f *flow) { w.wantDevice(f, "eth1") },
		undo:  func(w *world) { w.routeTargets(networkServer) },
	},
	{
		name: "the router's MAC address at the client", kinds: []kind{plain, both}, limit: soon,
		do: func(w *world) { w.setMAC("router", "c0", net.HardwareAddr{2, 0, 0, 0, 9, 3}) },
	},
	{
		name: "device removed and made again", kinds: []kind{plain, dnat}, limit: 2 * soon,
		do: func(w *world) {
			w.ip("router", "link del s0")
			w.link("server", "s0", networkServer)
			w.routeTargets(networkServer)
		},
	},
}

// announcing are the settings with which the server announces a new MAC address.
var announcing = []string{"ipv4/conf/all/arp_notify=1", "ipv6/conf/all/ndisc_notify=1", "ipv6/conf/eth0/ndisc_notify=1"}

// probeSoon has the router confirm its neighbours at a device again after half a second instead of half a minute.
func (w *world) probeSoon(device string) {
	w.t.Helper()
	for _, f := range []string{"ipv4", "ipv6"} {
		at := f + "/neigh/" + device + "/"
		w.sysctl("router", at+"base_reachable_time_ms=500", at+"delay_first_probe_time=1", at+"retrans_time_ms=100")
	}
	w.ip("router", "neigh flush dev "+device) // timers of old entries run for longer
}

// changed makes a change under settled flows, which continue, and are short-cut again.
func (w *world) changed(c change) {
	w.t.Helper()
	if c.before != nil {
		c.before(w)
	}
	var all []*flow
	for _, f := range families {
		for _, k := range c.kinds {
			for _, network := range []string{"tcp", "udp"} {
				if network == "udp" || !c.datagrams {
					all = append(all, w.open(network, k, f))
					all[len(all)-1].settle()
				}
			}
		}
	}
	c.do(w)
	for range 2 {
		for _, f := range all {
			f.continues(c.limit * load)
			if c.check != nil {
				c.check(w, f)
			}
		}
		for _, f := range all {
			f.settle()
		}
		if c.undo == nil {
			return
		}
		c.undo(w)
		c.check = nil
	}
}

// continues waits until a request is answered; those of UDP are sent again.
func (f *flow) continues(limit time.Duration) {
	f.w.t.Helper()
	if f.network == "tcp" {
		if err := f.exchangeWithin(1, limit); err != nil {
			f.w.t.Fatalf("%v", err)
		}
		return
	}
	f.w.within(limit, f.String()+" continues", func() bool { return f.exchangeWithin(1, 50*time.Millisecond*load) == nil })
}

// stops checks that the flow stops soon.
func (f *flow) stops() {
	f.w.t.Helper()
	f.w.within(soon*load, f.String()+" stops", func() bool {
		err := f.exchangeWithin(1, soon/4)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			f.w.t.Fatalf("%s: %v, want a timeout", f, err)
		}
		return err != nil
	})
}

// wantDevice checks that requests arrive at a device of the server.
func (w *world) wantDevice(f *flow, device string) {
	w.t.Helper()
	const requests = 30
	before := w.received("server", device)
	w.must(f.exchange(requests))
	if got := w.received("server", device) - before; got < requests {
		w.t.Errorf("%s: %s of the server has received %d packets of %d requests", f, device, got, requests)
	}
}

// received is how many packets a device of a host has received.
func (w *world) received(part, device string) (packets uint64) {
	w.t.Helper()
	nl, link, err := w.host(part).OpenDevice(device)
	w.must(err)
	nl.Close()
	return link.Attrs().Statistics.RxPackets
}

// dropRule inserts a rule, and deletes it.
func (w *world) dropRule(of family) {
	w.t.Helper()
	for _, network := range []string{"udp", "tcp"} {
		f := w.open(network, both, of)
		f.settle()
		w.nft(fmt.Sprintf("table inet late { chain forward { type filter hook forward priority 5; th dport %d drop; }; }", f.port))
		f.stops()
		w.nft("delete table inet late")
		f.continues(10 * soon * load)
		f.settle()
	}
}

// forgotten deletes the conntrack entry: datagrams begin a new one, with another port of the router, and a connection
// is not picked up again.
func (w *world) forgotten(of family) {
	w.t.Helper()
	f := w.open("udp", both, of)
	f.settle()
	was := f.peer()
	f.forget()
	w.within(soon*load, "the router chooses another port", func() bool {
		w.must(f.exchange(1))
		return f.peer() != was
	})
	f.settle()
	f = w.open("tcp", both, of)
	f.settle()
	f.forget()
	f.stops()
	w.nft("reset counter inet kube invalid") // these were
}

// smallerMTU gives the route to the server a smaller MTU: the client learns it from ICMP errors.
func (w *world) smallerMTU(of family) {
	w.t.Helper()
	const mtu = 1300
	stream, datagrams := w.open("tcp", both, of), w.open("udp", both, of)
	w.must(unfragmented(datagrams.near))
	stream.settle()
	datagrams.settle()
	w.must(stream.transfer(10))
	route := fmt.Sprintf("%s via %s", of.prefix(networkTargets), of.address(networkServer, 2))
	w.ip("router", "route replace "+route+fmt.Sprintf(" mtu %d", mtu))
	defer w.ip("router", "route replace "+route)
	w.within(soon*load, "a datagram is too long", func() bool {
		return errors.Is(datagrams.request(1400, soon/4), unix.EMSGSIZE)
	})
	w.must(datagrams.request(mtu-48, patience/6))
	w.within(soon*load, "segments fit", func() bool {
		w.must(stream.transfer(20))
		return mss(w, stream) <= mtu-40
	})
	stream.settle()
	datagrams.settle()
}

// unfragmented sets the flag DF of IPv4, and has no packet of IPv6 fragmented.
func unfragmented(conn net.Conn) error {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	level, option := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER
	if strings.Contains(conn.RemoteAddr().String(), "[") {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER
	}
	return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, unix.IP_PMTUDISC_DO) }), err)
}

// mss is the greatest payload of a segment that the client sends.
func mss(w *world, f *flow) uint32 {
	w.t.Helper()
	raw, err := f.near.(syscall.Conn).SyscallConn()
	w.must(err)
	var info *unix.TCPInfo
	w.must(raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }))
	w.must(err)
	return info.Snd_mss
}

// unresolved begins a flow while the server does not answer ARP or neighbour solicitations.
func (w *world) unresolved(of family) {
	w.t.Helper()
	f := w.open("udp", dnat, of)
	f.settle()
	w.ip("server", "link set eth0 down")
	w.ip("router", "neigh flush dev s0")
	for range 60 {
		_ = f.exchangeWithin(1, time.Millisecond) // EHOSTUNREACH sooner or later
	}
	w.ip("server", append(each(func(f family) string {
		return fmt.Sprintf("addr replace %s/%d dev eth0 nodad", f.address(networkServer, 2), f.prefix(networkServer).Bits())
	}), "link set eth0 up")...)
	w.ip("server", each(func(f family) string {
		return fmt.Sprintf("route replace default via %s dev eth0", f.address(networkServer, 1))
	})...)
	f.continues(5 * soon * load)
	f.settle()
}
