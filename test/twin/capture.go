// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A tap records what arrives at an end.
type tap struct {
	end end
	fd  int
	l3  bool // the device has no MAC addresses
}

// An arrival is a frame as a host received it.
type arrival struct {
	end    end
	kind   uint8 // the packet type: PACKET_HOST and so on
	vnet   vnetHeader
	status uint32 // TP_STATUS_* of struct tpacket_auxdata
	vlan   uint16 // tag that is not in the frame, if status has TP_STATUS_VLAN_VALID
	frame  []byte
	l3     bool // the device has no MAC addresses: the frame begins with the IP header
}

// longest is the length of the longest merged packet that is recorded, of BIG TCP.
const longest = 1 << 18

func (s *side) tap(e end) (*tap, error) {
	fd, _, err := s.packetSocket(e.host, e.device, unix.ETH_P_ALL<<8)
	return &tap{e, fd, s.macs[e.String()] == nil}, err
}

// drain returns what has arrived since the last call.
func (t *tap) drain(buffer []byte) (all []arrival, err error) {
	control := make([]byte, 256)
	for {
		n, controlled, flags, from, err := unix.Recvmsg(t.fd, buffer, control, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return all, nil
		case errors.Is(err, unix.ENETDOWN), errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return all, fmt.Errorf("receiving at %s: %w", t.end, os.NewSyscallError("recvmsg", err))
		case flags&unix.MSG_TRUNC != 0 || n > len(buffer):
			return all, fmt.Errorf("receiving at %s: a frame of %d octets is too long", t.end, n)
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		if !ok || link.Pkttype == unix.PACKET_OUTGOING || n < vnetHeaderSize {
			continue
		}
		a := arrival{end: t.end, kind: link.Pkttype, l3: t.l3, frame: append([]byte(nil), buffer[vnetHeaderSize:n]...)}
		if _, err := binary.Decode(buffer[:vnetHeaderSize], binary.NativeEndian, &a.vnet); err != nil {
			return all, err
		}
		if err := a.readControl(control[:controlled]); err != nil {
			return all, err
		}
		all = append(all, a)
	}
}

func (a *arrival) readControl(control []byte) error {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return err
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA && len(m.Data) >= int(unsafe.Sizeof(unix.TpacketAuxdata{})) {
			aux := *(*unix.TpacketAuxdata)(unsafe.Pointer(&m.Data[0]))
			a.status, a.vlan = aux.Status, aux.Vlan_tci
		}
	}
	return nil
}
