// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/datapath"
)

// Flags of a direction of TCP in the kernel's conntrack (linux/netfilter/nf_conntrack_tcp.h).
const (
	tcpBeLiberal   = 0x08 // accept sequence numbers outside the window
	tcpMaxAckKnown = 0x20 // compare those of a RST with the highest acknowledgment number
)

// Attributes of ctnetlink (linux/netfilter/nfnetlink_conntrack.h) that package nl lacks.
const (
	ctaProtoinfoTCPFlagsOriginal = 4
	ctaProtoinfoTCPFlagsReply    = 5
)

// liberal tells the kernel's conntrack that packets of a TCP connection pass it by, so that those which come back to
// the stack, at least its FIN or RST, are not invalid. The kernel does the same for its flowtables.
type liberal struct{ sockets map[int]*nl.SocketHandle }

func newLiberal() (*liberal, error) {
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open a socket to the kernel's conntrack: %w", err)
	}
	return &liberal{map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: socket}}}, nil
}

// set is called for a flow by the tuple of either direction. Flows of other protocols need nothing.
func (l *liberal) set(t *datapath.OffloadTuple) error {
	if t.Protocol != unix.IPPROTO_TCP {
		return nil
	}
	r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_ACK)
	r.Sockets = l.sockets
	source, destination := t.From(), t.To()
	family, from, to := uint8(unix.AF_INET), nl.CTA_IP_V4_SRC, nl.CTA_IP_V4_DST
	if source.Addr().Is6() {
		family, from, to = unix.AF_INET6, nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST
	}
	r.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	tuple := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, nil)
	ip := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil)
	ip.AddRtAttr(from, source.Addr().AsSlice())
	ip.AddRtAttr(to, destination.Addr().AsSlice())
	proto := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
	proto.AddRtAttr(nl.CTA_PROTO_NUM, []byte{t.Protocol})
	proto.AddRtAttr(nl.CTA_PROTO_SRC_PORT, binary.BigEndian.AppendUint16(nil, source.Port()))
	proto.AddRtAttr(nl.CTA_PROTO_DST_PORT, binary.BigEndian.AppendUint16(nil, destination.Port()))
	r.AddData(tuple)
	info := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_PROTOINFO, nil)
	tcp := info.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_PROTOINFO_TCP, nil)
	flags := []byte{tcpBeLiberal, tcpBeLiberal | tcpMaxAckKnown} // value, mask
	tcp.AddRtAttr(ctaProtoinfoTCPFlagsOriginal, flags)
	tcp.AddRtAttr(ctaProtoinfoTCPFlagsReply, flags)
	r.AddData(info)
	if _, err := r.Execute(unix.NETLINK_NETFILTER, 0); err != nil {
		return fmt.Errorf("the kernel's conntrack does not take the flags of its TCP connection: %w", err)
	}
	return nil
}

func (l *liberal) close() {
	for _, s := range l.sockets {
		s.Close()
	}
}
