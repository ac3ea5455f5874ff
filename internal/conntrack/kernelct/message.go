// SPDX-License-Identifier: Apache-2.0

package kernelct

import (
	"encoding/binary"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A message is requests to ctnetlink, one after the other. Package nl makes an object of each attribute: with tens of
// thousands of flows that takes longer than the kernel does.
type message struct {
	octets []byte
	start  int // of the last request
}

// begin begins a request about a flow.
func (m *message) begin(kind, flags uint16, f Flow) {
	m.start = len(m.octets)
	m.octets = binary.NativeEndian.AppendUint32(m.octets, 0) // length
	m.octets = binary.NativeEndian.AppendUint16(m.octets, unix.NFNL_SUBSYS_CTNETLINK<<8|kind)
	m.octets = binary.NativeEndian.AppendUint16(m.octets, unix.NLM_F_REQUEST|flags)
	m.octets = binary.NativeEndian.AppendUint64(m.octets, 0) // sequence number, port
	family := byte(unix.AF_INET)
	if f.Source.Addr().Is6() {
		family = unix.AF_INET6
	}
	m.octets = append(m.octets, family, nl.NFNETLINK_V0, 0, 0)
}

// end ends a request.
func (m *message) end(sequence uint32) {
	binary.NativeEndian.PutUint32(m.octets[m.start:], uint32(len(m.octets)-m.start))
	binary.NativeEndian.PutUint32(m.octets[m.start+8:], sequence)
}

// acknowledge asks for the answer to the last request.
func (m *message) acknowledge() {
	at := m.octets[m.start+6:]
	binary.NativeEndian.PutUint16(at, binary.NativeEndian.Uint16(at)|unix.NLM_F_ACK)
}

// attribute writes an attribute. Data of nested ones is what a function writes.
func (m *message) attribute(kind uint16, write func()) {
	at := len(m.octets)
	m.octets = binary.NativeEndian.AppendUint16(m.octets, 0)
	m.octets = binary.NativeEndian.AppendUint16(m.octets, kind)
	write()
	binary.NativeEndian.PutUint16(m.octets[at:], uint16(len(m.octets)-at))
	for len(m.octets)%unix.NLA_ALIGNTO != 0 {
		m.octets = append(m.octets, 0)
	}
}

func (m *message) data(kind uint16, data ...byte) {
	m.attribute(kind, func() { m.octets = append(m.octets, data...) })
}

func (m *message) number(kind uint16, n uint32) {
	m.attribute(kind, func() { m.octets = binary.BigEndian.AppendUint32(m.octets, n) })
}

func (m *message) port(kind, port uint16) {
	m.attribute(kind, func() { m.octets = binary.BigEndian.AppendUint16(m.octets, port) })
}

func (m *message) nested(kind uint16, write func()) { m.attribute(unix.NLA_F_NESTED|kind, write) }

func (m *message) tuple(kind uint16, f Flow) {
	m.nested(kind, func() {
		m.nested(nl.CTA_TUPLE_IP, func() {
			if f.Source.Addr().Is6() {
				from, to := f.Source.Addr().As16(), f.Destination.Addr().As16()
				m.data(nl.CTA_IP_V6_SRC, from[:]...)
				m.data(nl.CTA_IP_V6_DST, to[:]...)
				return
			}
			from, to := f.Source.Addr().As4(), f.Destination.Addr().As4()
			m.data(nl.CTA_IP_V4_SRC, from[:]...)
			m.data(nl.CTA_IP_V4_DST, to[:]...)
		})
		m.nested(nl.CTA_TUPLE_PROTO, func() {
			m.data(nl.CTA_PROTO_NUM, f.Protocol)
			m.port(nl.CTA_PROTO_SRC_PORT, f.Source.Port())
			m.port(nl.CTA_PROTO_DST_PORT, f.Destination.Port())
		})
	})
}

// tcpInfo writes the flags of both directions, and the state if it is not 0.
func (m *message) tcpInfo(state byte) {
	m.nested(nl.CTA_PROTOINFO, func() {
		m.nested(nl.CTA_PROTOINFO_TCP, func() {
			if state != 0 {
				m.data(ctaProtoinfoTCPState, state)
			}
			m.data(ctaProtoinfoTCPFlagsOriginal, tcpBeLiberal, tcpBeLiberal|tcpMaxAckKnown) // value, mask
			m.data(ctaProtoinfoTCPFlagsReply, tcpBeLiberal, tcpBeLiberal|tcpMaxAckKnown)
		})
	})
}
