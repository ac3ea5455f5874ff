// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
)

// A BridgePort is what decides whether a bridge forwards frames of a port. Its changes are events of RTNLGRP_LINK,
// except for VLAN states.
type BridgePort struct {
	Bridge int // its index
	// Stopped is why no untagged frame passes between the port and the bridge itself, such as "STP state blocking";
	// empty: they do.
	Stopped string
	// Isolated: no frame passes between two such ports (Linux 4.18).
	Isolated bool
}

// portForwarding is BR_STATE_FORWARDING, the state of ports and of VLANs in which they forward.
const portForwarding = 3

var portStates = [...]string{"disabled", "listening", "learning", "forwarding", "blocking"}

func portState(n uint8) string {
	if int(n) < len(portStates) {
		return portStates[n]
	}
	return fmt.Sprint(n)
}

// BridgePorts returns the ports of bridges by their index, as they are now.
func (n *Network) BridgePorts() (map[int]BridgePort, error) {
	objects, err := netdev.Objects(unix.NETLINK_ROUTE, unix.RTM_GETLINK, unix.RTM_NEWLINK, nl.NewIfInfomsg(unix.AF_BRIDGE).Serialize(), unix.SizeofIfInfomsg)
	if err != nil {
		return nil, fmt.Errorf("list the ports of bridges: %w", err)
	}
	ports := map[int]BridgePort{}
	for _, o := range objects {
		index, p, ok, err := parseBridgePort(o)
		if err != nil {
			return nil, fmt.Errorf("list the ports of bridges: %w", err)
		}
		if ok {
			ports[index] = p
		}
	}
	return ports, n.readPortVLANs(ports)
}

// parseBridgePort also returns the index of the port. The bridge itself is none.
func parseBridgePort(o netdev.Object) (index int, p BridgePort, ok bool, err error) {
	for _, a := range o.Attributes {
		switch a.Attr.Type {
		case unix.IFLA_MASTER:
			p.Bridge = int(binary.NativeEndian.Uint32(a.Value))
		case unix.IFLA_PROTINFO:
			ok = true
			if err := p.parse(a.Value); err != nil {
				return 0, p, false, err
			}
		}
	}
	return int(nl.DeserializeIfInfomsg(o.Header).Index), p, ok && p.Bridge != 0, nil
}

func (p *BridgePort) parse(b []byte) error {
	attributes, err := nl.ParseRouteAttr(b)
	if err != nil {
		return err
	}
	for _, a := range attributes {
		if len(a.Value) != 1 {
			continue
		}
		switch n := a.Value[0]; a.Attr.Type & nl.NLA_TYPE_MASK {
		case nl.IFLA_BRPORT_STATE:
			if n != portForwarding {
				p.Stopped = "STP state " + portState(n)
			}
		case nl.IFLA_BRPORT_LOCKED: // Linux 5.18; frames pass whose source is in the forwarding table
			if n != 0 && p.Stopped == "" {
				p.Stopped = "locked"
			}
		case nl.IFLA_BRPORT_ISOLATED:
			p.Isolated = n != 0
		}
	}
	return nil
}

// A portVLAN is where untagged frames of a port, or of the bridge itself, go.
type portVLAN struct {
	id       uint16
	untagged bool // frames of the VLAN leave without a tag
	state    uint8
}

// readPortVLANs notes which ports do not exchange untagged frames with their bridge because it filters VLANs.
func (n *Network) readPortVLANs(ports map[int]BridgePort) error {
	devices, err := n.Devices()
	if err != nil {
		return err
	}
	filtering := map[int]bool{}
	for _, d := range devices {
		if d.FiltersVLANs {
			filtering[d.Index] = true
		}
	}
	if len(filtering) == 0 {
		return nil
	}
	vlans, err := portVLANs()
	if err != nil {
		return err
	}
	for index, p := range ports {
		if filtering[p.Bridge] && p.Stopped == "" {
			p.Stopped = stoppedByVLAN(vlans[index], vlans[p.Bridge])
			ports[index] = p
		}
	}
	return nil
}

// stoppedByVLAN returns why untagged frames do not pass between a port and its bridge; empty: they do.
func stoppedByVLAN(port, bridge portVLAN) string {
	switch {
	case port.id == 0 || port.id != bridge.id:
		return fmt.Sprintf("VLAN %d, the bridge itself is in %d", port.id, bridge.id)
	case !port.untagged || !bridge.untagged:
		return fmt.Sprintf("VLAN %d, tagged", port.id)
	case port.state != portForwarding:
		return fmt.Sprintf("VLAN %d in state %s", port.id, portState(port.state))
	case bridge.state != portForwarding:
		return fmt.Sprintf("VLAN %d of the bridge itself in state %s", port.id, portState(bridge.state))
	}
	return ""
}

// Messages about VLANs of bridges (linux/if_bridge.h, Linux 5.6): struct br_vlan_msg with attributes.
const (
	rtmNewVLAN, rtmGetVLAN = 112, 114
	vlanMessageSize        = 8
	vlanEntry              = 1 // BRIDGE_VLANDB_ENTRY
	vlanEntryInfo          = 1 // BRIDGE_VLANDB_ENTRY_INFO: struct bridge_vlan_info
	vlanEntryState         = 3 // BRIDGE_VLANDB_ENTRY_STATE
)

// portVLANs returns the VLAN of untagged frames of ports and bridges by their index.
func portVLANs() (map[int]portVLAN, error) {
	objects, err := netdev.Objects(unix.NETLINK_ROUTE, rtmGetVLAN, rtmNewVLAN, append([]byte{unix.AF_BRIDGE}, make([]byte, vlanMessageSize-1)...), vlanMessageSize)
	if err != nil {
		return nil, fmt.Errorf("list the VLANs of bridges: %w", err)
	}
	all := map[int]portVLAN{}
	for _, o := range objects {
		if err := parsePortVLANs(o, all); err != nil {
			return nil, fmt.Errorf("list the VLANs of bridges: %w", err)
		}
	}
	return all, nil
}

func parsePortVLANs(o netdev.Object, all map[int]portVLAN) error {
	index := int(binary.NativeEndian.Uint32(o.Header[4:]))
	for _, e := range o.Attributes {
		if e.Attr.Type != vlanEntry {
			continue
		}
		attributes, err := nl.ParseRouteAttr(e.Value)
		if err != nil {
			return err
		}
		v, flags := portVLAN{state: portForwarding}, uint16(0)
		for _, a := range attributes {
			switch kind := a.Attr.Type & nl.NLA_TYPE_MASK; {
			case kind == vlanEntryInfo && len(a.Value) >= 4:
				flags, v.id = binary.NativeEndian.Uint16(a.Value), binary.NativeEndian.Uint16(a.Value[2:])
			case kind == vlanEntryState && len(a.Value) == 1:
				v.state = a.Value[0]
			}
		}
		if v.untagged = flags&nl.BRIDGE_VLAN_INFO_UNTAGGED != 0; flags&nl.BRIDGE_VLAN_INFO_PVID != 0 {
			all[index] = v
		}
	}
	return nil
}
