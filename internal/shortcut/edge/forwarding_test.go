// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/node/netdev/netdevtest"
)

// Status reports what is off only for families that need forwarding, until it is set; --set-sysctls sets
// it, and keeps router advertisements.
func TestForwardingIsReportedOrSet(t *testing.T) {
	off := []string{"ipv4/ip_forward=0", "ipv4/conf/eth0/forwarding=ipv4/ip_forward",
		"ipv6/conf/all/forwarding=0", "ipv6/conf/eth0/forwarding=ipv6/conf/all/forwarding", "ipv6/conf/eth0/accept_ra=1", "ipv6/conf/eth1/accept_ra=0"}
	for _, set := range []bool{false, true} {
		w := newWorld(t, Config{Mode: TC, SetSysctls: set}, veth)
		w.sysctls = netdevtest.Sysctls(t, off...)
		w.Start()
		w.want("eth0 tc")
		w.Forward([]service.Family{service.IPv4}, nil)
		w.rescan()
		if set {
			w.want("eth0 tc")
			netdevtest.WantSysctls(t, w.sysctls, "ipv4/ip_forward=1", "ipv6/conf/all/forwarding=0", "ipv6/conf/eth0/accept_ra=1")
			w.Forward([]service.Family{service.IPv6}, nil)
			w.rescan()
			netdevtest.WantSysctls(t, w.sysctls, "ipv6/conf/all/forwarding=1", "ipv6/conf/eth0/accept_ra=2", "ipv6/conf/eth1/accept_ra=0")
			continue
		}
		condition := "! ForwardingOff: IPv4 is not forwarded, and no external client reaches a backend other than this node itself: run sysctl -w net.ipv4.ip_forward=1, "
		w.want("eth0 tc", condition)
		if err := netdev.Sysctl("ipv4/ip_forward").Set(w.sysctls, "1"); err != nil {
			t.Fatal(err)
		}
		w.want("eth0 tc") // immediately
	}
}

// The kernel does not notify of sysctl changes: while one is off it is read again, until the condition
// ends, and --set-sysctls sets what is off again. A family that no Service needs any more is not reported, and
// the log does not claim that the kernel forwards it.
func TestForwardingIsReadAgain(t *testing.T) {
	w := newWorld(t, Config{Mode: TC}, veth)
	var log strings.Builder
	w.config.Log = slog.New(slog.NewTextHandler(&log, nil))
	w.sysctls = netdevtest.Sysctls(t, "ipv4/ip_forward=0", "ipv4/conf/eth0/forwarding=ipv4/ip_forward")
	w.Start()
	w.Forward([]service.Family{service.IPv4}, nil)
	step := func(what string, complains bool) {
		t.Helper()
		if w.failing() { // as followDevices asks each retryInterval
			w.rescan()
		}
		if got := len(w.forwarding) > 0; got != complains || w.failing() != complains {
			t.Errorf("%s: it has logged %q and is failing: %v, want %v", what, w.forwarding, w.failing(), complains)
		}
	}
	set := func(value string) {
		t.Helper()
		if err := netdev.Sysctl("ipv4/ip_forward").Set(w.sysctls, value); err != nil {
			t.Fatal(err)
		}
	}
	w.rescan()
	step("off", true)
	set("1")
	step("set", false)
	if again := "the kernel forwards packets again"; strings.Count(log.String(), again) != 1 {
		t.Errorf("it has not logged %q:\n%s", again, &log)
	}
	set("0")
	w.rescan() // a device has changed
	step("off again", true)
	w.Forward(nil, nil)
	w.want("eth0 tc")
	w.rescan() // Forward asks for it
	step("not needed", false)
	if still := "forwarding is still off in the kernel"; strings.Count(log.String(), still) != 1 || strings.Count(log.String(), "again") != 1 {
		t.Errorf("it has not logged %q:\n%s", still, &log)
	}
}

// Forwarding that is off concerns a DSR backend's machine only once it drops a client's packet for that: then it is a
// balancer as well.
func TestForwardingOfDSRBackend(t *testing.T) {
	w := newWorld(t, Config{Mode: TC}, veth)
	w.sysctls = netdevtest.Sysctls(t, "ipv4/ip_forward=0", "ipv4/conf/eth0/forwarding=ipv4/ip_forward")
	w.Start()
	w.Forward(nil, []service.Family{service.IPv4})
	w.rescan()
	w.noteForwardingDrops(7, time.Now()) // of before this agent
	w.want("eth0 tc")
	w.noteForwardingDrops(8, time.Now())
	w.want("eth0 tc", "! ForwardingOff: IPv4 is not forwarded")
	w.Forward([]service.Family{service.IPv4}, []service.Family{service.IPv4}) // another Service, once
	w.want("eth0 tc", "! ForwardingOff: IPv4 is not forwarded")
	w.Forward(nil, nil)
	w.want("eth0 tc")
}
