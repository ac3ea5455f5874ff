// SPDX-License-Identifier: Apache-2.0

// Package kernelct writes entries of the kernel's conntrack by netlink, in the network namespace of the caller: for
// flows whose packets pass it by, and return to it.
package kernelct

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/ti-mo/conntrack"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Flow is a TCP or UDP flow without NAT, as its opener sends it.
type Flow struct {
	Source, Destination netip.AddrPort
	Protocol            uint8
}

// Reverse is the flow as the other end sends it.
func (f Flow) Reverse() Flow { return Flow{f.Destination, f.Source, f.Protocol} }

// Flags of a direction of TCP in the kernel's conntrack (linux/netfilter/nf_conntrack_tcp.h).
const (
	tcpBeLiberal   = 0x08 // accept sequence numbers outside the window
	tcpMaxAckKnown = 0x20 // compare those of a RST with the highest acknowledgment number
)

// unrepliedTimeout is the timeout of the entry of a datagram without a reply, in seconds.
const unrepliedTimeout = 30

// tcpEstablished is a state of TCP there.
const tcpEstablished = 3

// Attributes of ctnetlink (linux/netfilter/nfnetlink_conntrack.h) that package nl lacks.
const (
	ctaProtoinfoTCPState         = 1
	ctaProtoinfoTCPFlagsOriginal = 4
	ctaProtoinfoTCPFlagsReply    = 5
)

// Table is the kernel's conntrack. It may be used by one goroutine at a time.
type Table struct {
	sockets map[int]*nl.SocketHandle
	reader  *conntrack.Conn
	// Timeouts of entries that Create makes, in seconds: TCP in state ESTABLISHED, and UDP streams.
	tcp, udp uint32
}

// Open opens a socket to the kernel's conntrack.
func Open() (*Table, error) {
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open a socket to the kernel's conntrack: %w", err)
	}
	reader, err := conntrack.Dial(nil)
	if err != nil {
		socket.Close()
		return nil, fmt.Errorf("open a socket to the kernel's conntrack: %w", err)
	}
	return &Table{
		map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: socket}}, reader,
		timeout("tcp_timeout_established", 432000), timeout("udp_timeout_stream", 120),
	}, nil
}

// timeout reads a setting of the kernel's conntrack.
func timeout(name string, otherwise uint32) uint32 {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_" + name)
	if err != nil {
		return otherwise
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return otherwise
	}
	return uint32(n)
}

// Close closes the sockets.
func (t *Table) Close() {
	t.reader.Close()
	for _, s := range t.sockets {
		s.Close()
	}
}

// SetLiberal tells the kernel's conntrack that packets of a TCP connection pass it by, so that those which come back to
// the stack, at least its FIN or RST, are not invalid. The kernel does the same for its flowtables. The flow may be
// that of either direction. Flows of other protocols need nothing.
func (t *Table) SetLiberal(f Flow) error {
	if f.Protocol != unix.IPPROTO_TCP {
		return nil
	}
	r := t.request(nl.IPCTNL_MSG_CT_NEW, 0, f)
	r.AddData(tuple(nl.CTA_TUPLE_ORIG, f))
	r.AddData(tcpInfo(0))
	if _, err := r.Execute(unix.NETLINK_NETFILTER, 0); err != nil {
		return fmt.Errorf("the kernel's conntrack does not take the flags of its TCP connection: %w", err)
	}
	return nil
}

// Create adds the entry of a flow whose packets conntrack has not seen: of an established one, or of a datagram that
// waits for its reply. Any packet of the flow is then valid. It is not an error if there is an entry.
func (t *Table) Create(f Flow, replied bool) error {
	r := t.request(nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_CREATE|unix.NLM_F_EXCL, f)
	r.AddData(tuple(nl.CTA_TUPLE_ORIG, f))
	r.AddData(tuple(nl.CTA_TUPLE_REPLY, f.Reverse()))
	status, seconds := conntrack.StatusConfirmed, uint32(unrepliedTimeout)
	if replied {
		status, seconds = conntrack.StatusConfirmed|conntrack.StatusSeenReply|conntrack.StatusAssured, t.udp
	}
	r.AddData(nl.NewRtAttr(nl.CTA_STATUS, binary.BigEndian.AppendUint32(nil, uint32(status))))
	if f.Protocol == unix.IPPROTO_TCP {
		seconds = t.tcp
		r.AddData(tcpInfo(tcpEstablished))
	}
	r.AddData(nl.NewRtAttr(nl.CTA_TIMEOUT, binary.BigEndian.AppendUint32(nil, seconds)))
	if _, err := r.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add an entry to the kernel's conntrack: %w", err)
	}
	return nil
}

// Delete deletes the entry of a flow. It is not an error if there is none.
func (t *Table) Delete(f Flow) error {
	r := t.request(nl.IPCTNL_MSG_CT_DELETE, 0, f)
	r.AddData(tuple(nl.CTA_TUPLE_ORIG, f))
	if _, err := r.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete an entry of the kernel's conntrack: %w", err)
	}
	return nil
}

func (t *Table) request(message, flags int, f Flow) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|message, flags|unix.NLM_F_ACK)
	r.Sockets = t.sockets
	family := uint8(unix.AF_INET)
	if f.Source.Addr().Is6() {
		family = unix.AF_INET6
	}
	r.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return r
}

func tuple(attribute int, f Flow) *nl.RtAttr {
	from, to := nl.CTA_IP_V4_SRC, nl.CTA_IP_V4_DST
	if f.Source.Addr().Is6() {
		from, to = nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST
	}
	tuple := nl.NewRtAttr(unix.NLA_F_NESTED|attribute, nil)
	ip := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil)
	ip.AddRtAttr(from, f.Source.Addr().AsSlice())
	ip.AddRtAttr(to, f.Destination.Addr().AsSlice())
	proto := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
	proto.AddRtAttr(nl.CTA_PROTO_NUM, []byte{f.Protocol})
	proto.AddRtAttr(nl.CTA_PROTO_SRC_PORT, binary.BigEndian.AppendUint16(nil, f.Source.Port()))
	proto.AddRtAttr(nl.CTA_PROTO_DST_PORT, binary.BigEndian.AppendUint16(nil, f.Destination.Port()))
	return tuple
}

// tcpInfo has the flags of both directions, and the state if it is not 0.
func tcpInfo(state byte) *nl.RtAttr {
	info := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_PROTOINFO, nil)
	tcp := info.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_PROTOINFO_TCP, nil)
	if state != 0 {
		tcp.AddRtAttr(ctaProtoinfoTCPState, []byte{state})
	}
	flags := []byte{tcpBeLiberal, tcpBeLiberal | tcpMaxAckKnown} // value, mask
	tcp.AddRtAttr(ctaProtoinfoTCPFlagsOriginal, flags)
	tcp.AddRtAttr(ctaProtoinfoTCPFlagsReply, flags)
	return info
}

// IsOpen reports whether the kernel's conntrack has a flow, in the direction of its opener and without NAT, that is
// open.
func (t *Table) IsOpen(f Flow) (bool, error) {
	e, err := t.reader.Get(conntrack.Flow{TupleOrig: conntrack.Tuple{
		IP:    conntrack.IPTuple{SourceAddress: f.Source.Addr(), DestinationAddress: f.Destination.Addr()},
		Proto: conntrack.ProtoTuple{Protocol: f.Protocol, SourcePort: f.Source.Port(), DestinationPort: f.Destination.Port()},
	}})
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up a flow in the kernel's conntrack: %w", err)
	}
	there, back := flowOf(&e.TupleOrig), flowOf(&e.TupleReply)
	if there != f || back != f.Reverse() || e.Status&(conntrack.StatusNATMask|conntrack.StatusOffload) != 0 {
		return false, nil
	}
	return f.Protocol != unix.IPPROTO_TCP || e.ProtoInfo.TCP != nil && e.ProtoInfo.TCP.State == tcpEstablished, nil
}

func flowOf(t *conntrack.Tuple) Flow {
	return Flow{
		Source:      netip.AddrPortFrom(t.IP.SourceAddress.Unmap(), t.Proto.SourcePort),
		Destination: netip.AddrPortFrom(t.IP.DestinationAddress.Unmap(), t.Proto.DestinationPort),
		Protocol:    t.Proto.Protocol,
	}
}
