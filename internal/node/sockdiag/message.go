// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// request is struct inet_diag_req_v2. Ports and addresses are in network byte order, other fields
// in host byte order.
type request struct {
	family, protocol uint8
	states           States
	local, remote    netip.AddrPort
	device           uint32
	cookie           uint64
}

const (
	idLength      = 48                // struct inet_diag_sockid
	requestLength = 8 + idLength      // struct inet_diag_req_v2
	messageLength = 4 + idLength + 20 // struct inet_diag_msg
)

// attrV6Only is INET_DIAG_SKV6ONLY (Linux 4.3).
const attrV6Only = 11

func requestFor(s Socket) *request {
	r := &request{family: unix.AF_INET6, protocol: s.Protocol, states: AllStates,
		local: s.Local, remote: s.Remote, device: s.Device, cookie: s.Cookie}
	if s.Local.Addr().Is4() {
		r.family = unix.AF_INET
	}
	return r
}

func (r *request) Len() int { return requestLength }

func (r *request) Serialize() []byte {
	b := make([]byte, 0, requestLength)
	b = append(b, r.family, r.protocol, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, uint32(r.states))
	b = binary.BigEndian.AppendUint16(b, r.local.Port())
	b = binary.BigEndian.AppendUint16(b, r.remote.Port())
	for _, a := range []netip.AddrPort{r.local, r.remote} {
		field := make([]byte, 16)
		copy(field, a.Addr().AsSlice())
		b = append(b, field...)
	}
	b = binary.NativeEndian.AppendUint32(b, r.device)
	b = binary.NativeEndian.AppendUint32(b, uint32(r.cookie))
	return binary.NativeEndian.AppendUint32(b, uint32(r.cookie>>32))
}

// parse decodes a struct inet_diag_msg and its attributes.
func parse(m []byte) (Socket, error) {
	if len(m) < messageLength {
		return Socket{}, fmt.Errorf("the kernel's reply has %d bytes, less than %d", len(m), messageLength)
	}
	id := m[4:]
	length := 4
	if m[0] == unix.AF_INET6 {
		length = 16
	}
	local, _ := netip.AddrFromSlice(id[4 : 4+length])
	remote, _ := netip.AddrFromSlice(id[20 : 20+length])
	s := Socket{
		State:  1 << m[1],
		Local:  netip.AddrPortFrom(local, binary.BigEndian.Uint16(id)),
		Remote: netip.AddrPortFrom(remote, binary.BigEndian.Uint16(id[2:])),
		Device: binary.NativeEndian.Uint32(id[36:]),
		Cookie: uint64(binary.NativeEndian.Uint32(id[44:]))<<32 | uint64(binary.NativeEndian.Uint32(id[40:])),
		UID:    binary.NativeEndian.Uint32(m[messageLength-8:]),
		Inode:  binary.NativeEndian.Uint32(m[messageLength-4:]),
	}
	for a := m[messageLength:]; len(a) >= unix.SizeofNlAttr; {
		size := int(binary.NativeEndian.Uint16(a))
		if size < unix.SizeofNlAttr || size > len(a) {
			return s, fmt.Errorf("an attribute of %d bytes in the last %d bytes of the kernel's reply", size, len(a))
		}
		if binary.NativeEndian.Uint16(a[2:]) == attrV6Only && size > unix.SizeofNlAttr {
			s.V6Only = a[unix.SizeofNlAttr] != 0
		}
		a = a[min((size+3)&^3, len(a)):]
	}
	return s, nil
}
