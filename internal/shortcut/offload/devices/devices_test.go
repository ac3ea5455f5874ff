// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/netdev"
)

// links are devices of flow offload; the other ends of some are in the network namespace of a process.
const links = `link add eth0 type veth peer name eth0 netns %[1]s
link add eth1 mtu 1400 type veth peer name eth1 netns %[1]s
link add idle type veth peer name idle netns %[1]s
link add uplink type veth peer name uplink netns %[1]s
link add cali1 type veth peer name cali1 netns %[1]s
link add cali2 type veth peer name cali2 netns %[1]s
link add near type veth peer name far
link add br0 type bridge
link add port master br0 type veth peer name port netns %[1]s
link add vx type vxlan external dstport 4789
link set lo up
link set eth0 up
link set eth1 up
link set uplink up
link set cali1 up
link set cali2 up
link set near up
link set far up
link set br0 up
link set port up
link set vx up
address add 192.0.2.1/24 dev eth0
address add 198.51.100.1/24 dev eth1
route add default dev uplink
route add 10.10.1.2/32 dev cali1
`

// inNamespace runs a test in a network namespace of its own, with the devices of links.
func inNamespace(t *testing.T, test func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			other := exec.Command("sleep", "60")
			other.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
			if err := other.Start(); err != nil {
				return err
			}
			defer other.Wait()
			defer other.Process.Kill()
			cmd := exec.Command("ip", "-batch", "-")
			cmd.Stdin = strings.NewReader(fmt.Sprintf(links, fmt.Sprint(other.Process.Pid)))
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("ip: %w: %s", err, out)
			}
			test()
			return nil
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// The devices are those by which flows enter and leave, and others are refused with the way out.
func TestDevices(t *testing.T) {
	inNamespace(t, func() {
		all, err := Read(new(node.Network))
		if err != nil {
			t.Error(err)
			return
		}
		for _, c := range []struct{ patterns, want, unmatched string }{
			{"", "eth0 eth1 uplink far near br0 vx", ""},
			{"eth*", "eth0 eth1", ""},
			{"cali*,eth0", "eth0 cali1 cali2", ""},
			{"eth0,wan", "eth0", "wan: "},
			{"port,lo", "", "port: port it is a port of br0, which gets its packets: give br0 instead; lo: lo it is the loopback device"},
			{"idle", "", "idle: idle it is down"},
		} {
			chosen, unmatched := Choose(all, strings.FieldsFunc(c.patterns, func(r rune) bool { return r == ',' }))
			names, reasons := "", []string{}
			for _, d := range chosen {
				names += " " + d.Name
			}
			for _, u := range unmatched {
				reasons = append(reasons, strings.TrimSpace(u.Pattern+": "+u.Device+" "+u.Why))
			}
			if got := strings.Join(reasons, "; "); strings.TrimSpace(names) != c.want || got != strings.TrimSpace(c.unmatched) {
				t.Errorf("%q: %q, unmatched %q\nwant %q, %q", c.patterns, strings.TrimSpace(names), got, c.want, c.unmatched)
			}
		}
		for _, d := range all {
			if d.Name == "eth1" && (d.MTU != 1400 || d.Kind != "veth" || d.Above != netdev.Device{}) {
				t.Errorf("eth1: %+v", d)
			}
		}
	})
}

// Kinds of devices that not every kernel for tests has.
func TestKinds(t *testing.T) {
	var found []node.DeviceRoutes
	for _, d := range []netdev.Device{
		{Index: 1, Name: "red", Kind: "vrf", Up: true, Ethernet: true},
		{Index: 2, Name: "eth0", Kind: "device", Up: true, Ethernet: true, Master: 1},
		{Index: 3, Name: "eth0.7", Kind: "vlan", Up: true, Ethernet: true},
		{Index: 4, Name: "bond0", Kind: "bond", Up: true, Ethernet: true},
		{Index: 5, Name: "eth1", Kind: "device", Up: true, Ethernet: true, Master: 4},
		{Index: 6, Name: "wg0", Kind: "wireguard", Up: true, L3: true},
		{Index: 7, Name: "gre1", Kind: "gre", Up: true},
		{Index: 8, Name: "dummy0", Kind: "dummy", Up: true, Ethernet: true},
		{Index: 9, Name: "nk0", Kind: "netkit", Up: true, Ethernet: true, PeerElsewhere: true},
	} {
		found = append(found, node.DeviceRoutes{Device: d, Enslaved: d.Master == 4})
	}
	all := describe(found)
	var got []string
	for _, d := range all {
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %t %.30s", d.Name, d.Above.Name, d.Pod, d.Unsuitable)))
	}
	want := "red  false a VRF only chooses routes: giv|eth0 red false|eth0.7  false|bond0  false|eth1 bond0 false it is a port of bond0, which g|" +
		"wg0  false|gre1  false its packets begin neither with|dummy0  false no hosts are behind a device o|nk0  true"
	if strings.Join(got, "|") != want {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "|"), want)
	}
}
