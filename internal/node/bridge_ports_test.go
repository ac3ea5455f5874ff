// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/binary"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/node/netdev"
	"golang.org/x/sys/unix"
)

// States of a port are read that keep frames from passing, each with its name, and whether it is isolated.
func TestBridgePorts(t *testing.T) {
	inNamespace(t, func() error {
		for _, c := range []string{"link add br0 type bridge", "link add p0 type veth peer name q0", "link set p0 master br0", "link set br0 up", "link set q0 up", "link set p0 up"} {
			if err := ip(c); err != nil {
				return err
			}
		}
		port, err := netlink.LinkByName("p0")
		if err != nil {
			return err
		}
		bridge := port.Attrs().MasterIndex
		for _, c := range []struct {
			do   string
			want BridgePort
		}{
			{"hairpin off", BridgePort{Bridge: bridge}},
			{"isolated on", BridgePort{Bridge: bridge, Isolated: true}},
			{"locked on", BridgePort{Bridge: bridge, Isolated: true, Stopped: "locked"}},
			{"isolated off locked off state 2", BridgePort{Bridge: bridge, Stopped: "STP state learning"}},
			{"state 0", BridgePort{Bridge: bridge, Stopped: "STP state disabled"}},
			{"state 3", BridgePort{Bridge: bridge}},
		} {
			if out, err := exec.Command("bridge", append([]string{"link", "set", "dev", "p0"}, strings.Fields(c.do)...)...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", c.do, err, out)
			}
			ports, err := new(Network).BridgePorts()
			if err != nil {
				return err
			}
			if got := ports[port.Attrs().Index]; got != c.want || len(ports) != 1 {
				t.Errorf("after \"bridge link set dev p0 %s\" the ports of bridges are %+v, want device %d with %+v alone", c.do, ports, port.Attrs().Index, c.want)
			}
		}
		return nil
	})
}

// vlanMessage is a message about VLANs of a device, as the kernel dumps them (br_vlan_fill_vids).
func vlanMessage(index int, entries ...[]byte) []byte {
	m := append([]byte{unix.AF_BRIDGE, 0, 0, 0}, binary.NativeEndian.AppendUint32(nil, uint32(index))...)
	for _, e := range entries {
		m = append(m, attribute(vlanEntry|unix.NLA_F_NESTED, e)...)
	}
	return m
}

func vlanEntryOf(id, flags uint16, state uint8) []byte {
	info := binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, flags), id)
	return append(attribute(vlanEntryInfo, info), attribute(vlanEntryState, []byte{state})...)
}

func attribute(kind uint16, data []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(data)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), data...)
	return append(b, make([]byte, -len(b)&3)...)
}

// A port exchanges untagged frames with its bridge if both have the same VLAN for these, and it is not stopped.
func TestVLANsOfPorts(t *testing.T) {
	const pvid, untagged, both = 1 << 1, 1 << 2, 1<<1 | 1<<2
	bridge := vlanMessage(1, vlanEntryOf(1, both, 3), vlanEntryOf(7, 0, 3))
	for want, port := range map[string][]byte{
		"":                                  vlanMessage(2, vlanEntryOf(7, untagged, 3), vlanEntryOf(1, both, 3)),
		"VLAN 7, the bridge itself is in 1": vlanMessage(2, vlanEntryOf(1, untagged, 3), vlanEntryOf(7, both, 3)),
		"VLAN 0, the bridge itself is in 1": vlanMessage(2, vlanEntryOf(1, untagged, 3)),
		"VLAN 1, tagged":                    vlanMessage(2, vlanEntryOf(1, pvid, 3)),
		"VLAN 1 in state blocking":          vlanMessage(2, vlanEntryOf(1, both, 4)),
	} {
		all := map[int]portVLAN{}
		for _, m := range [][]byte{bridge, port} {
			o, err := netdev.ObjectOf(m, vlanMessageSize)
			if err == nil {
				err = parsePortVLANs(o, all)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if got := stoppedByVLAN(all[2], all[1]); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// With a bridge that filters VLANs a port is stopped while its VLAN is not the bridge's, or is blocked there.
func TestVLANFiltering(t *testing.T) {
	inNamespace(t, func() error {
		if err := ip("link add br0 type bridge vlan_filtering 1"); err != nil {
			return lacks(fmt.Sprintf("CONFIG_BRIDGE_VLAN_FILTERING: %v", err))
		}
		for _, c := range []string{"link add p0 type veth peer name q0", "link set p0 master br0", "link set br0 up", "link set q0 up", "link set p0 up"} {
			if err := ip(c); err != nil {
				return err
			}
		}
		port, err := netlink.LinkByName("p0")
		if err != nil {
			return err
		}
		for _, c := range []struct{ do, want string }{
			{"vlan add dev p0 vid 5", ""},
			{"vlan add dev p0 vid 7 pvid untagged", "VLAN 7, the bridge itself is in 1"},
			{"vlan add dev br0 vid 7 pvid untagged self", ""},
			{"vlan set dev p0 vid 7 state blocking", "VLAN 7 in state blocking"},
			{"vlan set dev p0 vid 7 state forwarding", ""},
			{"vlan add dev p0 vid 7 pvid", "VLAN 7, tagged"},
			{"vlan del dev p0 vid 7", "VLAN 0, the bridge itself is in 7"},
		} {
			if out, err := exec.Command("bridge", strings.Fields(c.do)...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", c.do, err, out)
			}
			ports, err := new(Network).BridgePorts()
			if err != nil {
				return err
			}
			if got := ports[port.Attrs().Index].Stopped; got != c.want {
				t.Errorf("after \"bridge %s\" the port p0 is stopped by %q, want %q", c.do, got, c.want)
			}
		}
		return nil
	})
}
