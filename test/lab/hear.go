// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// An Ear records packets that arrive at devices of a host, from its creation on.
type Ear struct {
	devices []string
	sockets []int
}

// HeardPacket is an IP packet that has arrived at a device. Recorded are neither IPv6's own messages (neighbour
// discovery, group membership) nor ICMPv6 errors.
type HeardPacket struct {
	Device string
	// From and To have ports if the protocol is TCP or UDP.
	From, To netip.AddrPort
	Protocol uint8
	Fragment bool
	// Length is the number of octets from the IP header on, of all segments of a merged packet.
	Length int
}

// earSize is the number of octets that an ear buffers for each device.
const earSize = 32 << 20

// Hear begins to listen at devices of the host. The caller closes the ear.
func (h *Host) Hear(devices ...string) (*Ear, error) {
	e := &Ear{devices: devices}
	err := h.Do(func() error {
		for _, name := range devices {
			fd, err := hearAt(name)
			if err != nil {
				return fmt.Errorf("listening at device %s: %w", name, err)
			}
			e.sockets = append(e.sockets, fd)
		}
		return nil
	})
	if err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func hearAt(device string) (fd int, err error) {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return -1, err
	}
	fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	all := unix.SockaddrLinklayer{Protocol: unix.ETH_P_ALL << 8, Ifindex: link.Attrs().Index}
	err = errors.Join(
		os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, earSize)),
		os.NewSyscallError("bind", unix.Bind(fd, &all)))
	if err != nil {
		unix.Close(fd)
	}
	return fd, err
}

// Packets returns the packets since the last call.
func (e *Ear) Packets() (all []HeardPacket, err error) {
	buffer := make([]byte, 1<<16)
	for i, fd := range e.sockets {
		for {
			n, from, err := unix.Recvfrom(fd, buffer, 0)
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			if err != nil {
				return all, os.NewSyscallError("recvfrom", err)
			}
			if link, ok := from.(*unix.SockaddrLinklayer); ok && link.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			if p, ok := parseHeard(buffer[:n]); ok {
				p.Device = e.devices[i]
				all = append(all, p)
			}
		}
	}
	return all, nil
}

// Close stops recording.
func (e *Ear) Close() {
	for _, fd := range e.sockets {
		unix.Close(fd)
	}
}

func parseHeard(b []byte) (p HeardPacket, ok bool) {
	var from, to netip.Addr
	header := 40
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		from, to = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		p.Protocol, p.Fragment = b[9], binary.BigEndian.Uint16(b[6:])&0x3fff != 0
		header = int(b[0]&15) * 4
	case len(b) >= 40 && b[0]>>4 == 6:
		from, to = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		p.Protocol, p.Fragment = b[6], b[6] == unix.IPPROTO_FRAGMENT
		if p.Protocol == unix.IPPROTO_ICMPV6 || p.Protocol == unix.IPPROTO_HOPOPTS {
			return p, false
		}
	default:
		return p, false
	}
	p.Length = len(b)
	ports := [2]uint16{}
	if (p.Protocol == unix.IPPROTO_TCP || p.Protocol == unix.IPPROTO_UDP) && len(b) >= header+4 {
		ports[0], ports[1] = binary.BigEndian.Uint16(b[header:]), binary.BigEndian.Uint16(b[header+2:])
	}
	p.From, p.To = netip.AddrPortFrom(from, ports[0]), netip.AddrPortFrom(to, ports[1])
	return p, true
}
