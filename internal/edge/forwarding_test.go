// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"beeline.io/beeline/internal/service"
)

// sysctlTree makes a tree of settings like /proc/sys/net. A setting whose value is a path is a link to that
// setting: the kernel sets both.
func sysctlTree(t *testing.T, settings ...string) (root string) {
	t.Helper()
	root = t.TempDir()
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(value, "/") {
			if err := os.Symlink(filepath.Join(root, value), path); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(path, []byte(value+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestForwardingOff(t *testing.T) {
	devices := []string{"eth0", "eth1.7"}
	for _, c := range []struct {
		name     string
		family   service.Family
		settings []string
		want     string
	}{
		{"on", service.IPv4, []string{"ipv4/ip_forward=1", "ipv4/conf/eth0/forwarding=1", "ipv4/conf/eth1.7/forwarding=1"}, "[]"},
		{"off", service.IPv4, []string{"ipv4/ip_forward=0", "ipv4/conf/eth0/forwarding=0", "ipv4/conf/eth1.7/forwarding=0"}, "[net.ipv4.ip_forward]"},
		{"on at the devices", service.IPv4, []string{"ipv4/ip_forward=0", "ipv4/conf/eth0/forwarding=1", "ipv4/conf/eth1.7/forwarding=1"}, "[]"},
		{"off at one device", service.IPv4, []string{"ipv4/ip_forward=1", "ipv4/conf/eth0/forwarding=1", "ipv4/conf/eth1.7/forwarding=0"}, "[net.ipv4.conf.eth1/7.forwarding]"},
		{"off", service.IPv6, []string{"ipv6/conf/all/forwarding=0", "ipv6/conf/eth0/forwarding=0"}, "[net.ipv6.conf.all.forwarding]"},
		{"on at the devices alone", service.IPv6, []string{"ipv6/conf/all/forwarding=0", "ipv6/conf/eth0/forwarding=1"}, "[net.ipv6.conf.all.forwarding]"},
		{"off at one device", service.IPv6, []string{"ipv6/conf/all/forwarding=1", "ipv6/conf/eth0/forwarding=0"}, "[net.ipv6.conf.eth0.forwarding]"},
		{"no IPv6", service.IPv6, nil, "[]"},
	} {
		t.Run(fmt.Sprint(c.family, " ", c.name), func(t *testing.T) {
			if got := fmt.Sprint(forwardingOff(sysctlTree(t, c.settings...), c.family, devices)); got != c.want {
				t.Errorf("to be set: %s, want %s", got, c.want)
			}
		})
	}
}

// Status reports what is off only for families that need forwarding, until it is set; --set-sysctls sets
// it, and keeps router advertisements.
func TestForwardingIsReportedOrSet(t *testing.T) {
	off := []string{"ipv4/ip_forward=0", "ipv4/conf/eth0/forwarding=ipv4/ip_forward",
		"ipv6/conf/all/forwarding=0", "ipv6/conf/eth0/forwarding=ipv6/conf/all/forwarding", "ipv6/conf/eth0/accept_ra=1", "ipv6/conf/eth1/accept_ra=0"}
	for _, set := range []bool{false, true} {
		w := newWorld(t, Config{Mode: TC, SetSysctls: set}, veth)
		w.sysctls = sysctlTree(t, off...)
		w.Start()
		w.want("eth0 tc")
		w.Forward([]service.Family{service.IPv4})
		w.rescan()
		if set {
			w.want("eth0 tc")
			wantSysctls(t, w.sysctls, "ipv4/ip_forward=1", "ipv6/conf/all/forwarding=0", "ipv6/conf/eth0/accept_ra=1")
			w.Forward([]service.Family{service.IPv6})
			w.rescan()
			wantSysctls(t, w.sysctls, "ipv6/conf/all/forwarding=1", "ipv6/conf/eth0/accept_ra=2", "ipv6/conf/eth1/accept_ra=0")
			continue
		}
		condition := "! ForwardingOff: IPv4 is not forwarded, and no external client reaches a backend other than this node itself: run sysctl -w net.ipv4.ip_forward=1, "
		w.want("eth0 tc", condition)
		if err := sysctl("ipv4/ip_forward").set(w.sysctls, "1"); err != nil {
			t.Fatal(err)
		}
		w.want("eth0 tc") // immediately
	}
}

// The kernel does not notify of sysctl changes: while one is off it is read again, until the condition
// ends, and --set-sysctls sets what is off again. A family that no Service needs any more is not reported.
func TestForwardingIsReadAgain(t *testing.T) {
	w := newWorld(t, Config{Mode: TC}, veth)
	w.sysctls = sysctlTree(t, "ipv4/ip_forward=0", "ipv4/conf/eth0/forwarding=ipv4/ip_forward")
	w.Start()
	w.Forward([]service.Family{service.IPv4})
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
		if err := sysctl("ipv4/ip_forward").set(w.sysctls, value); err != nil {
			t.Fatal(err)
		}
	}
	w.rescan()
	step("off", true)
	set("1")
	step("set", false)
	set("0")
	w.rescan() // a device has changed
	step("off again", true)
	w.Forward(nil)
	w.want("eth0 tc")
	w.rescan() // Forward asks for it
	step("not needed", false)
}

func wantSysctls(t *testing.T, root string, settings ...string) {
	t.Helper()
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil || strings.TrimSpace(string(text)) != value {
			t.Errorf("%s is %q (%v), want %s", name, text, err, value)
		}
	}
}
