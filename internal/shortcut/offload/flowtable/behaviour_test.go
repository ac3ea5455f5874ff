// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/shortcut/offload/selftest"
)

// What happens to flows in the flowtable, in one world: each part begins with a flow that is in it, and leaves the
// world as it was.
func TestFlows(t *testing.T) {
	r := newRig(t)
	report := r.start(Config{Hardware: true})
	r.wantVethReport(report)
	for _, part := range []struct {
		name string
		kind selftest.Kind
		run  func(*rig, *selftest.Flow)
	}{
		{"a long stream", selftest.Kind{Network: "tcp", Translation: selftest.Both}, (*rig).longStream},
		{"FIN", selftest.Kind{Network: "tcp", Translation: selftest.DNAT}, (*rig).fin},
		{"RST", selftest.Kind{Network: "tcp", IPv6: true, Translation: selftest.DNAT}, (*rig).reset},
		{"counters", selftest.Kind{Network: "udp", Translation: selftest.SNAT}, (*rig).counters},
		{"another MAC", selftest.Kind{Network: "tcp", Translation: selftest.Both}, (*rig).otherMAC},
		{"another route", selftest.Kind{Network: "udp", IPv6: true, Translation: selftest.DNAT}, (*rig).otherRoute},
		{"another rule", selftest.Kind{Network: "tcp", Translation: selftest.Both}, (*rig).otherRule},
		{"invalid next hop", selftest.Kind{Network: "udp", Translation: selftest.Plain}, (*rig).invalidNextHop},
		{"idle", selftest.Kind{Network: "udp", Translation: selftest.DNAT}, (*rig).idle},
		{"close", selftest.Kind{Network: "tcp", Translation: selftest.Both}, (*rig).closed},
	} {
		if !t.Run(part.name, func(t *testing.T) {
			r := *r
			r.T = t
			part.run(&r, r.open(part.kind))
		}) && t.Failed() {
			t.Log("status:", r.table.Status())
		}
	}
}

// wantVethReport: the driver of veth devices cannot offload flows.
func (r *rig) wantVethReport(report Report) {
	r.Helper()
	for _, d := range bothDevices {
		if why := report.RefusedHardwareDevices[d]; !strings.Contains(why, "its driver cannot offload flows: EOPNOTSUPP (operation not supported)") {
			r.Errorf("hardware: %s is refused because %q", d, why)
		}
	}
	if len(report.SoftwareDevices) != 2 || len(report.HardwareDevices) != 0 || len(report.RefusedDevices) != 0 || !report.AccountingEnabled {
		r.Errorf("Apply reports %+v, want both devices in the flowtable of the software, and accounting", report)
	}
}

func (r *rig) longStream(f *selftest.Flow) {
	before, err := r.Forwarded()
	must(r.T, err)
	must(r.T, f.Stream(5<<20))
	after, err := r.Forwarded()
	must(r.T, err)
	if after != before {
		r.Errorf("%d packets of the stream passed the stack", after-before)
	}
	r.flushedStream(f)
}

// flushedStream: a stream outlives its returns to the stack, which then meets sequence numbers that it does not know.
func (r *rig) flushedStream(f *selftest.Flow) {
	done := make(chan error, 1)
	go func() { done <- f.Stream(5 << 20) }()
	for flushes := 0; ; flushes++ {
		select {
		case err := <-done:
			must(r.T, err)
			if flushes == 0 {
				r.Error("no return to the stack was tried")
			}
			return
		case <-time.After(20 * time.Millisecond):
			must(r.T, r.table.Flush("test"))
		}
	}
}

// fin: the stack sees each FIN, and conntrack the end of the connection.
func (r *rig) fin(f *selftest.Flow) {
	before, err := r.Forwarded()
	must(r.T, err)
	must(r.T, f.Finish())
	after, err := r.Forwarded()
	must(r.T, err)
	if after < before+2 {
		r.Errorf("%d packets of the end passed the stack, want both FINs", after-before)
	}
	r.gone(f)
}

func (r *rig) reset(f *selftest.Flow) {
	must(r.T, f.Conn.(*net.TCPConn).SetLinger(0))
	f.Close()
	r.gone(f)
}

// find returns the flow as conntrack lists it in a flowtable; nil if it is not there.
func (r *rig) find(f *selftest.Flow) *Flow {
	r.Helper()
	all, err := r.table.Flows()
	must(r.T, err)
	for _, have := range all {
		if have.Source == addrPort(f.Conn.LocalAddr()) {
			return &have
		}
	}
	return nil
}

func (r *rig) gone(f *selftest.Flow) {
	r.Helper()
	r.eventually("the flow has left the flowtable", func() bool { return r.find(f) == nil })
}

// counters: conntrack counts the packets that pass the stack by.
func (r *rig) counters(f *selftest.Flow) {
	before := r.find(f)
	if before == nil {
		r.Fatal("the flow is not listed")
	}
	const rounds = 30
	must(r.T, f.Exchange(rounds))
	after := r.find(f)
	if after == nil || after.Packets != before.Packets+2*rounds || after.Octets != before.Octets+2*rounds*(64+28) {
		r.Errorf("the flow is %+v, before %d exchanges %+v", after, rounds, before)
	}
	if after != nil && (after.Hardware || after.Destination != addrPort(f.Conn.RemoteAddr()) || after.ReplyDestination.Addr() == addrPort(f.Conn.LocalAddr()).Addr()) {
		r.Errorf("the flow is %+v, want SNAT in software", after)
	}
}

// otherMAC: a server's new MAC address is used soon after the neighbour entry has it. Conntrack has no entry for the
// server's announcement.
func (r *rig) otherMAC(f *selftest.Flow) {
	var before net.HardwareAddr
	set := func(mac net.HardwareAddr) {
		r.in(r.Server, func() error { return netlink.LinkSetHardwareAddr(byName(selftest.HostDevice), mac) })
		r.announce()
		r.soon(f)
		r.taken(f)
	}
	r.in(r.Server, func() error {
		before = byName(selftest.HostDevice).Attrs().HardwareAddr
		return nil
	})
	set(net.HardwareAddr{2, 0, 0, 0, 0, 1})
	set(before)
}

// announce has the server ask for the router's MAC address: it no longer knows it when its own has changed.
func (r *rig) announce() {
	r.Helper()
	r.in(r.Server, func() error {
		for i := range selftest.ServerAddresses {
			c, err := net.Dial("udp", netip.AddrPortFrom(selftest.ClientAddresses[i].Addr(), 9).String())
			if err != nil {
				return err
			}
			_, err = c.Write([]byte{1})
			c.Close()
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// soon: TCP continues. What was lost is repeated within a second or two; the flowtable would forget a flow after 30.
func (r *rig) soon(f *selftest.Flow) {
	r.Helper()
	f.Conn.SetDeadline(time.Now().Add(5 * time.Second))
	must(r.T, f.Exchange(10))
	f.Conn.SetDeadline(time.Now().Add(patience))
}

func addrPort(a net.Addr) netip.AddrPort { return netip.MustParseAddrPort(a.String()) }

// forget drops answers of UDP that came too late.
func forget(f *selftest.Flow) {
	f.Conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	for {
		if _, err := f.Conn.Read(make([]byte, 1500)); err != nil {
			break
		}
	}
	f.Conn.SetReadDeadline(time.Time{})
}

// recovers: datagrams arrive again.
func (r *rig) recovers(f *selftest.Flow) {
	r.Helper()
	r.eventually("datagrams arrive", func() bool {
		forget(f)
		return r.try(f) == nil
	})
	r.taken(f)
}

// try exchanges one message, soon or not at all.
func (r *rig) try(f *selftest.Flow) error {
	f.Conn.SetDeadline(time.Now().Add(200 * time.Millisecond))
	defer f.Conn.SetDeadline(time.Now().Add(patience))
	return f.Exchange(1)
}

func (r *rig) otherRoute(f *selftest.Flow) {
	unreachable := &netlink.Route{Dst: host(selftest.ServerAddresses[1].Addr()), Type: unix.RTN_UNREACHABLE, Priority: 1}
	r.in(r.Router, func() error { return netlink.RouteAdd(unreachable) })
	time.Sleep(time.Second)
	if r.try(f) == nil {
		r.Error("packets still arrive")
	}
	r.in(r.Router, func() error { return netlink.RouteDel(unreachable) })
	r.recovers(f)
}

func host(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// otherRule: a new rule that drops the packets applies within a second after Flush, and the connection outlives it.
func (r *rig) otherRule(f *selftest.Flow) {
	c, err := nftables.New(nftables.WithNetNSFd(r.Router.FD()))
	must(r.T, err)
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "policy"})
	chain := c.AddChain(&nftables.Chain{Table: table, Name: "forward", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}})
	must(r.T, c.Flush())
	must(r.T, r.table.Flush("the ruleset"))
	time.Sleep(time.Second)
	done := make(chan error, 1)
	go func() { done <- f.Exchange(1) }()
	select {
	case err := <-done:
		r.Error("packets still arrive:", err)
	case <-time.After(300 * time.Millisecond):
	}
	c.DelTable(table)
	must(r.T, c.Flush())
	must(r.T, r.table.Flush("the ruleset"))
	must(r.T, <-done) // TCP repeats it
	r.taken(f)
}

// invalidNextHop: a flow whose next hop is not valid returns to the stack, which reports that to the client.
func (r *rig) invalidNextHop(f *selftest.Flow) {
	r.in(r.Server, func() error { return netlink.LinkSetARPOff(byName(selftest.HostDevice)) })
	r.in(r.Router, func() error {
		return netlink.NeighSet(&netlink.Neigh{
			LinkIndex: byName(selftest.ServerDevice).Attrs().Index, Family: unix.AF_INET,
			IP: selftest.ServerAddresses[0].Addr().AsSlice(), State: netlink.NUD_FAILED,
		})
	})
	begun := time.Now()
	r.eventually("the flow is with the stack", func() bool { return r.try(f) != nil && r.find(f) == nil })
	if took := time.Since(begun); took > 2*time.Second {
		r.Errorf("the flow returned to the stack after %v", took)
	}
	r.in(r.Server, func() error { return netlink.LinkSetARPOn(byName(selftest.HostDevice)) })
	r.recovers(f)
}

// idle: a flow without packets leaves the flowtable, and returns.
func (r *rig) idle(f *selftest.Flow) {
	timeout := netdev.Sysctl("netfilter/nf_flowtable_udp_timeout")
	r.in(r.Router, func() error { return timeout.Set(netdev.SysctlRoot, "1") })
	must(r.T, f.Exchange(1))
	time.Sleep(time.Second)
	r.gone(f)
	r.in(r.Router, func() error { return timeout.Set(netdev.SysctlRoot, "30") })
	r.taken(f)
}

// closed: Close, and Remove, leave connections and the tables of others alone.
func (r *rig) closed(f *selftest.Flow) {
	must(r.T, r.table.Close())
	r.notTaken(f, "the flowtable is closed")
	_, err := r.table.Apply(Config{Devices: bothDevices})
	must(r.T, err)
	r.taken(f)
	r.in(r.Router, Remove)
	r.notTaken(f, "the tables are removed")
	c, err := nftables.New(nftables.WithNetNSFd(r.Router.FD()))
	must(r.T, err)
	tables, err := c.ListTables()
	must(r.T, err)
	if len(tables) != 1 || tables[0].Name != "translations" {
		r.Errorf("after Remove there are %d tables, want that of the test", len(tables))
	}
}
