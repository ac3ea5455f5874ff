// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/node"
)

// with returns a device with an MTU and routes.
func (d Device) with(mtu int, routes ...node.Lead) Device {
	d.MTU, d.Leads = mtu, routes
	return d
}

func way(network string, mtu int) node.Lead {
	return node.Lead{To: netip.MustParsePrefix(network), MTU: mtu}
}

// The packets that fit depend on the narrowest route to a backend; status does not suggest more than what
// clients send.
func TestWhatFitsByDSR(t *testing.T) {
	clients := device(2, "eth0", func(d *Device) { d.Clients = true })
	overlay := device(5, "vxlan0", func(*Device) {})
	default4, default6 := way("0.0.0.0/0", 0), way("::/0", 0)
	for _, c := range []struct {
		name         string
		devices      []Device
		destinations map[service.DSR][]netip.Addr
		want         string // "; " between
	}{
		{"nothing uses DSR", []Device{clients.with(1500, default4)}, nil, ""},
		{"no backends on other nodes", []Device{clients.with(1500)}, map[service.DSR][]netip.Addr{service.DSRIPIP: nil}, ""},
		{"no route", []Device{clients.with(1500, way("10.0.0.0/8", 0))}, map[service.DSR][]netip.Addr{service.DSRIPIP: addrs("192.0.2.7", "fd00::1")}, ""},
		{"ipip", []Device{clients.with(1500, default4, default6)}, map[service.DSR][]netip.Addr{service.DSRIPIP: addrs("10.10.2.11", "fd00::1")},
			"DSR (ipip), IPv4: clients' packets up to 1480 bytes; larger ones are answered with ICMP: raise the MTU of eth0 from 1500 to 1520; " +
				"DSR (ipip), IPv6: clients' packets up to 1460 bytes; larger ones are answered with ICMP: raise the MTU of eth0 from 1500 to 1540"},
		{"geneve and opt", []Device{clients.with(1500, default4, default6)},
			map[service.DSR][]netip.Addr{service.DSRGeneve: addrs("192.0.2.2", "2001:db8::2"), service.DSROpt: addrs("10.10.2.11", "fd00::1")},
			"DSR (geneve), IPv4: clients' packets up to 1452 bytes; larger ones are answered with ICMP: raise the MTU of eth0 from 1500 to 1548; " +
				"DSR (geneve), IPv6: clients' packets up to 1420 bytes; larger ones are answered with ICMP: raise the MTU of eth0 from 1500 to 1580; " +
				"DSR (opt), IPv4: clients' packets up to 1492 bytes; larger ones are answered with ICMP: raise the MTU of eth0 from 1500 to 1508; " +
				"DSR (opt), IPv6: clients' packets up to 1476 bytes; larger ones are answered with ICMP: raise the MTU of eth0 from 1500 to 1524"},
		{"large enough", []Device{clients.with(1520, default4)}, map[service.DSR][]netip.Addr{service.DSRIPIP: addrs("10.10.2.11")},
			"DSR (ipip), IPv4: clients' packets up to 1500 bytes"},
		{"jumbo frames", []Device{clients.with(9000, default4)}, map[service.DSR][]netip.Addr{service.DSRIPIP: addrs("10.10.2.11")},
			"DSR (ipip), IPv4: clients' packets up to 8980 bytes"},
		{"clients of a narrow network", []Device{clients.with(1400, default6), overlay.with(1450, way("10.10.0.0/16", 0))},
			map[service.DSR][]netip.Addr{service.DSRIPIP: addrs("10.10.2.11"), service.DSRGeneve: addrs("10.10.2.11")},
			"DSR (geneve), IPv4: clients' packets up to 1402 bytes; DSR (ipip), IPv4: clients' packets up to 1430 bytes"},
		{"the longest prefix wins", []Device{clients.with(1600, default4), overlay.with(1450, way("10.10.0.0/16", 0))},
			map[service.DSR][]netip.Addr{service.DSRIPIP: addrs("10.10.2.11"), service.DSRGeneve: addrs("192.0.2.2")},
			"DSR (geneve), IPv4: clients' packets up to 1552 bytes; " +
				"DSR (ipip), IPv4: clients' packets up to 1430 bytes; larger ones are answered with ICMP: raise the MTU of vxlan0 from 1450 to 1520"},
		{"the narrowest backend", []Device{clients.with(1600, default4), overlay.with(1450, way("10.10.2.0/24", 0))},
			map[service.DSR][]netip.Addr{service.DSRIPIP: addrs("10.10.1.11", "10.10.2.11", "10.10.3.11")},
			"DSR (ipip), IPv4: clients' packets up to 1430 bytes; larger ones are answered with ICMP: raise the MTU of vxlan0 from 1450 to 1520"},
		{"the route's own MTU", []Device{clients.with(1600, default4, way("10.10.2.0/24", 1510), way("10.10.3.0/24", 9000))},
			map[service.DSR][]netip.Addr{service.DSRIPIP: addrs("10.10.2.11", "10.10.3.11")},
			"DSR (ipip), IPv4: clients' packets up to 1490 bytes; larger ones are answered with ICMP: raise the MTU of the route to 10.10.2.0/24 by eth0 from 1510 to 1520"},
		{"two routes of one length", []Device{clients.with(1600, default4), overlay.with(1450, default4)},
			map[service.DSR][]netip.Addr{service.DSROpt: addrs("10.10.2.11")},
			"DSR (opt), IPv4: clients' packets up to 1442 bytes; larger ones are answered with ICMP: raise the MTU of vxlan0 from 1450 to 1508"},
	} {
		var got []string
		for _, s := range planDSR(c.devices, c.devices[:1], c.destinations) {
			got = append(got, strings.TrimSuffix(s.String(), ", and that of all links on the route to the backends"))
		}
		if got := strings.Join(got, "; "); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
}

// The DSR status follows devices and backends, is not a condition, and is logged once.
func TestWhatFitsIsFollowed(t *testing.T) {
	to := map[service.DSR][]netip.Addr{}
	w := newWorld(t, Config{Mode: TC, Destinations: &destinations{dsr: to}}, hardware.with(1500, way("0.0.0.0/0", 0)))
	fits := func() (all []int) {
		for _, s := range w.want("eth0 tc").DSR {
			all = append(all, s.MaxPacketBytes)
		}
		return all
	}
	notified := func() bool {
		select {
		case <-w.changed:
			return true
		default:
			return false
		}
	}
	w.Start()
	if w.DSRChanged(false); notified() || fits() != nil {
		t.Errorf("without DSR: %v", fits())
	}
	to[service.DSRIPIP] = addrs("10.10.2.11")
	if w.DSRChanged(true); !notified() {
		t.Error("the DSR status is not updated")
	}
	var log strings.Builder
	w.config.Log = slog.New(slog.NewTextHandler(&log, nil))
	w.rescan()
	w.rescan()
	if got := fits(); len(got) != 1 || got[0] != 1480 || strings.Count(log.String(), "up to 1480 bytes") != 1 {
		t.Errorf("with ipip: %v; logged:\n%s", got, log.String())
	}
	w.devices[0].MTU = 1520
	w.rescan()
	if got := fits(); len(got) != 1 || got[0] != 1500 {
		t.Errorf("with a larger MTU: %v", got)
	}
	delete(to, service.DSRIPIP)
	if w.DSRChanged(false); !notified() {
		t.Error("the end of DSR is not noticed")
	}
	if w.rescan(); fits() != nil {
		t.Errorf("without DSR again: %v", fits())
	}
}
