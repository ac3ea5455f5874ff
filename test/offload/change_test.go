// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// A change of the router or the server under flows that are short-cut.
type change struct {
	name string
	// flows are those that it does not end; nil: all.
	flows  func(*flow) bool
	before func(*world) // while they are still settled
	do     func(*world)
	check  func(*world, *flow) // of flows that continue; nil: nothing
	undo   func(*world)
	limit  time.Duration // until flows continue
}

// changes is about flows that take another way, or none: as on the stack, within a second. The last change ends flows
// whose source is translated.
func changes(w *world) {
	all := w.everyFlow()
	for _, c := range everyChange {
		w.t.Run(c.name, func(t *testing.T) { w.in(t).changed(c, all) })
	}
	w.t.Run("next hop is unknown at first", func(t *testing.T) { w.in(t).unresolved(all) })
	w.t.Run("smaller MTU", func(t *testing.T) { w.in(t).smallerMTUs(all) })
	w.t.Run("own table deleted", func(t *testing.T) { w.in(t).ownTable(all) })
	w.t.Run("route to the source", func(t *testing.T) { w.in(t).sourceMoved() })
	w.t.Run("new drop rule", func(t *testing.T) { w.in(t).dropRule(all) })
	w.t.Run("deleted conntrack entry", func(t *testing.T) { w.in(t).forgotten(all) })
}

// everyFlow opens flows of several kinds in both families, which are short-cut.
func (w *world) everyFlow() (all []*flow) {
	w.t.Helper()
	for _, of := range families {
		for _, network := range []string{"tcp", "udp"} {
			for _, k := range []kind{plain, dnat, both} {
				all = append(all, w.open(network, k, of))
			}
		}
	}
	w.settle(all...)
	return all
}

// of are those of some flows that match, for a subtest.
func (w *world) of(all []*flow, match func(*flow) bool) (some []*flow) {
	for _, f := range all {
		if match == nil || match(f) {
			own := *f
			own.w = w
			some = append(some, &own)
		}
	}
	return some
}

func isUDP(f *flow) bool       { return f.network == "udp" }
func isOwnSource(f *flow) bool { return f.kind.host == 2 }

var everyChange = []change{
	{
		name: "server's MAC address, announced", limit: soon,
		do: func(w *world) { w.setMAC("server", "eth0", net.HardwareAddr{2, 0, 0, 0, 9, 1}) },
	},
	{
		// A connection waits longer and longer before it sends again.
		name: "server's MAC address, not announced", flows: isUDP, limit: 5 * soon,
		before: func(w *world) { w.probeSoon("s0") },
		do: func(w *world) {
			w.sysctl("server", "ipv4/conf/all/arp_notify=0", "ipv6/conf/all/ndisc_notify=0", "ipv6/conf/eth0/ndisc_notify=0")
			w.setMAC("server", "eth0", net.HardwareAddr{2, 0, 0, 0, 9, 2})
			w.sysctl("server", announcing...)
		},
	},
	{
		name: "the router's MAC address at the client", limit: soon,
		do: func(w *world) { w.setMAC("router", "c0", net.HardwareAddr{2, 0, 0, 0, 9, 3}) },
	},
	{
		// The kernel ends masqueraded flows that leave by another device.
		name: "other next hop", flows: isOwnSource, limit: soon,
		do:    func(w *world) { w.routeTargets(networkServer1) },
		check: func(w *world, f *flow) { w.wantDevice(f, "eth1") },
		undo:  func(w *world) { w.routeTargets(networkServer) },
	},
	{
		name: "device removed and made again", flows: isOwnSource, limit: 2 * soon,
		do: func(w *world) {
			w.ip("router", "link del s0")
			w.link("server", "s0", networkServer)
			w.routeTargets(networkServer)
			w.sysctl("server", announcing...)
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
func (w *world) changed(c change, all []*flow) {
	w.t.Helper()
	all = w.of(all, c.flows)
	if c.before != nil {
		c.before(w)
	}
	w.settle(all...)
	c.do(w)
	w.continues(c, all)
	if c.undo != nil {
		c.undo(w)
		c.check = nil
		w.continues(c, all)
	}
}

func (w *world) continues(c change, all []*flow) {
	w.t.Helper()
	for _, f := range all {
		f.continues(c.limit * load)
		if c.check != nil {
			c.check(w, f)
		}
	}
	w.settle(all...)
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

// wantDevice waits until requests arrive at a device of the server.
func (w *world) wantDevice(f *flow, device string) {
	w.t.Helper()
	const requests = 30
	w.within(soon*load, fmt.Sprintf("%s reaches %s of the server", f, device), func() bool {
		before := w.received("server", device)
		w.must(f.exchange(requests))
		return w.received("server", device)-before >= requests
	})
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
func (w *world) dropRule(all []*flow) {
	w.t.Helper()
	all = w.of(all, func(f *flow) bool { return f.kind == dnat })
	w.settle(all...)
	w.nft(fmt.Sprintf("table inet late { chain forward { type filter hook forward priority 5; th dport { %s } drop; }; }", portsOf(all)))
	for _, f := range all {
		f.stops()
	}
	w.nft("delete table inet late")
	for _, f := range all {
		f.continues(10 * soon * load)
	}
	w.settle(all...)
}

// ownTable deletes the offload table of nftables, as somebody may who flushes all rules. The agent creates it again.
func (w *world) ownTable(all []*flow) {
	w.t.Helper()
	if *stack {
		return
	}
	const name = "inet beeline_offload"
	w.nft("delete table " + name)
	w.eventually("table "+name+" is there again", func() bool { return strings.Contains(w.run("router", "nft", "list", "tables"), "table "+name+"\n") })
	w.settle(w.of(all, isOwnSource)...) // earlier changes have ended the others
}

func portsOf(all []*flow) string {
	var ports []string
	for _, f := range all {
		ports = append(ports, fmt.Sprint(f.port))
	}
	return strings.Join(ports, ", ")
}

// forgotten deletes the conntrack entries: datagrams begin a new one, with another port of the router, and a connection
// is not picked up again.
func (w *world) forgotten(all []*flow) {
	w.t.Helper()
	for _, f := range w.of(all, func(f *flow) bool { return f.kind == dnat && f.network == "tcp" }) {
		f.forget()
		f.stops()
		f.abort()
	}
	w.nft("reset counter inet kube invalid") // these were
	fresh := []*flow{w.open("udp", both, 0), w.open("udp", both, 1)}
	w.settle(fresh...)
	for _, f := range fresh {
		was := f.peer()
		f.forget()
		w.within(soon*load, "the router chooses another port", func() bool {
			w.must(f.exchange(1))
			return f.peer() != was
		})
	}
	w.settle(fresh...)
}

// unresolved has flows wait for their next hop, which does not answer ARP and neighbour solicitations at first.
func (w *world) unresolved(all []*flow) {
	w.t.Helper()
	all = w.of(all, func(f *flow) bool { return f.kind == dnat && f.network == "udp" })
	w.ip("server", "link set eth0 down")
	w.ip("router", "neigh flush dev s0")
	for _, f := range all {
		for range 60 {
			_ = f.exchangeWithin(1, time.Millisecond) // EHOSTUNREACH sooner or later
		}
	}
	w.ip("server", append(each(func(f family) string {
		return fmt.Sprintf("addr replace %s/%d dev eth0 nodad", f.address(networkServer, 2), f.prefix(networkServer).Bits())
	}), "link set eth0 up")...)
	w.ip("server", each(func(f family) string {
		return fmt.Sprintf("route replace default via %s dev eth0", f.address(networkServer, 1))
	})...)
	for _, f := range all {
		f.continues(5 * soon * load)
	}
	w.settle(all...)
}
