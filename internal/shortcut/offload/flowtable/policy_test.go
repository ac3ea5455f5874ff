// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"net/netip"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/shortcut/offload/policy"
	"beeline.io/beeline/internal/shortcut/offload/selftest"
)

// Which flows are taken.
func TestPolicy(t *testing.T) {
	r := newRig(t)
	r.start(Config{})
	tcp, udp6 := selftest.Kind{Network: "tcp", Translation: selftest.DNAT}, selftest.Kind{Network: "udp", IPv6: true}
	flows := map[selftest.Kind]*selftest.Flow{tcp: r.open(tcp), udp6: r.open(udp6)}
	prefix := netip.MustParsePrefix
	for _, c := range []struct {
		name  string
		c     Config
		taken map[selftest.Kind]bool
	}{
		{"a network of one family", Config{Policy: policy.Policy{Networks: []netip.Prefix{prefix("192.0.2.0/25"), prefix("192.0.2.0/24")}}}, map[selftest.Kind]bool{tcp: true}},
		{"the address before DNAT", Config{Policy: policy.Policy{Networks: []netip.Prefix{prefix("203.0.113.1/32"), prefix("2001:db8:7::/48")}}}, map[selftest.Kind]bool{tcp: true}},
		{"excluded: the address after DNAT", Config{Policy: policy.Policy{ExcludeNetworks: []netip.Prefix{prefix("198.51.100.0/24")}}}, map[selftest.Kind]bool{udp6: true}},
		{"a port", Config{Policy: policy.Policy{Ports: []bpf.PortRange{{First: 8080, Last: 8080}, {First: 1, Last: 79}}}}, map[selftest.Kind]bool{udp6: true}},
		{"excluded: a port", Config{Policy: policy.Policy{ExcludePorts: []bpf.PortRange{{First: 8080, Last: 8080}}}}, map[selftest.Kind]bool{tcp: true}},
		{"a protocol", Config{Policy: policy.Policy{Protocols: []uint8{unix.IPPROTO_UDP}}}, map[selftest.Kind]bool{udp6: true}},
		{"no device", Config{Devices: []string{selftest.ClientDevice}}, nil},
		{"only chosen, none", Config{OnlyChosen: true}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := *r
			r.T = t
			if c.c.Devices == nil {
				c.c.Devices = bothDevices
			}
			_, err := r.table.Apply(c.c)
			must(t, err)
			for kind, f := range flows {
				if c.taken[kind] {
					r.taken(f)
				} else {
					r.notTaken(f, "the policy")
				}
			}
		})
	}
	_, err := r.table.Apply(Config{Devices: bothDevices})
	must(t, err)
	r.taken(flows[tcp])
	chosen := r.find(flows[tcp])
	_, err = r.table.Apply(Config{Devices: bothDevices, OnlyChosen: true})
	must(t, err)
	must(t, r.table.Choose(chosen.ID))
	r.taken(flows[tcp])
	r.notTaken(flows[udp6], "it is not chosen")
}

// Flows whose next hop is not known to be valid are never taken: here nobody tells.
func TestNextHopsUnknown(t *testing.T) {
	r := newRig(t)
	r.in(r.Router, func() error {
		for _, d := range bothDevices {
			all, err := netlink.NeighList(byName(d).Attrs().Index, unix.AF_UNSPEC)
			if err != nil {
				return err
			}
			for _, n := range all {
				_ = netlink.NeighDel(&n)
			}
		}
		return nil
	})
	_, err := r.table.Apply(Config{Devices: bothDevices})
	must(t, err)
	f, err := r.Open(r.ctx, selftest.Kind{Network: "udp"})
	must(t, err)
	defer f.Close()
	r.notTaken(f, "its next hops were not valid when the table was created")
	r.run()
	r.taken(f)
}

// Devices that are not put into the flowtable.
func TestRefusedDevices(t *testing.T) {
	r := newRig(t)
	r.in(r.Router, func() error {
		return netlink.LinkAdd(&netlink.Gretap{LinkAttrs: netlink.LinkAttrs{Name: "external"}, FlowBased: true})
	})
	c, err := nftables.New(nftables.WithNetNSFd(r.Router.FD()))
	must(t, err)
	firewalld := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "firewalld"})
	c.AddFlowtable(&nftables.Flowtable{Table: firewalld, Name: "ft", Devices: []string{selftest.ClientDevice}})
	must(t, c.Flush())
	report, err := r.table.Apply(Config{Devices: []string{selftest.ClientDevice, selftest.ServerDevice, "external", "missing"}})
	must(t, err)
	for device, want := range map[string]string{
		selftest.ClientDevice: "it is in flowtable ft of table inet firewalld, of firewalld", "external": refusedExternal, "missing": "there is no such device",
	} {
		if report.RefusedDevices[device] != want {
			t.Errorf("%s is refused because %q, want %q", device, report.RefusedDevices[device], want)
		}
	}
	if len(report.SoftwareDevices) != 1 || report.SoftwareDevices[0] != selftest.ServerDevice {
		t.Errorf("in the flowtable are %v", report.SoftwareDevices)
	}
}
