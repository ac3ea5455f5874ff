// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// attributes are netlink attributes by their type. Integers are in network byte order.
type attributes map[uint16][]byte

func parseAttributes(b []byte) attributes {
	all := attributes{}
	for _, a := range attributeList(b) {
		all[a.kind] = a.data
	}
	return all
}

// attributeType is the bits of an attribute's type without flags (NLA_TYPE_MASK).
const attributeType = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)

type attribute struct {
	kind uint16
	data []byte
}

// attributeList parses attributes that may have the same type.
func attributeList(b []byte) (all []attribute) {
	for len(b) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			break
		}
		all = append(all, attribute{binary.NativeEndian.Uint16(b[2:]) & attributeType, b[unix.SizeofNlAttr:size]})
		b = b[min((size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b)):]
	}
	return all
}

func (a attributes) nested(kind uint16) attributes { return parseAttributes(a[kind]) }

func (a attributes) text(kind uint16) string { return nl.BytesToString(append(a[kind], 0)) }

func (a attributes) has(kind uint16) bool {
	_, ok := a[kind]
	return ok
}

// number is 0 if there is no such attribute.
func (a attributes) number(kind uint16) uint32 {
	if len(a[kind]) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(a[kind])
}

// A client asks nf_tables. Requests with many answers, one for each chain or set, need a socket that stays.
type client struct {
	fd       int
	sequence uint32
	buffer   []byte
}

// clientBuffer is more than the kernel puts into one message of a dump (32 KiB).
const clientBuffer = 1 << 16

// clientTimeout ends the wait for an answer that does not come.
const clientTimeout = 10 // seconds

func newClient() (*client, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: clientTimeout}),
	)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &client{fd: fd, buffer: make([]byte, clientBuffer)}, nil
}

func (c *client) close() { unix.Close(c.fd) }

// A query is a request to nf_tables, or another subsystem of nfnetlink. Names are zero-terminated.
type query struct {
	subsystem int // NFNL_SUBSYS_*; 0: NFNL_SUBSYS_NFTABLES
	message   int // NFT_MSG_*
	family    uint8
	dump      bool
	names     map[int]string
	numbers   map[int]uint32
}

// errInterrupted: what was dumped changed meanwhile, so that the answer may lack some of it.
var errInterrupted = errors.New("the rules changed while they were read")

// ask returns the attributes of each message of the answer, and its family. It asks again if a dump was interrupted.
func (c *client) ask(q query) (all []attributes, families []uint8, err error) {
	for range askAttempts {
		all, families = nil, nil
		err = c.each(q, func(family uint8, body []byte) error {
			all, families = append(all, parseAttributes(slices.Clone(body))), append(families, family)
			return nil
		})
		if !errors.Is(err, errInterrupted) {
			break
		}
	}
	return all, families, err
}

const askAttempts = 5

// each gives the attributes of each message of the answer to a function. They are valid until it returns. After
// errInterrupted the function has got messages in vain.
func (c *client) each(q query, handle func(family uint8, body []byte) error) error {
	c.sequence++
	r := nl.NewNetlinkRequest(cmp.Or(q.subsystem, unix.NFNL_SUBSYS_NFTABLES)<<8|q.message, 0)
	r.Seq = c.sequence
	if q.dump {
		r.Flags |= unix.NLM_F_DUMP
	}
	r.AddData(&nl.Nfgenmsg{NfgenFamily: q.family, Version: nl.NFNETLINK_V0})
	for kind, name := range q.names {
		r.AddData(nl.NewRtAttr(kind, nl.ZeroTerminated(name)))
	}
	for kind, number := range q.numbers {
		r.AddData(nl.NewRtAttr(kind, binary.BigEndian.AppendUint32(nil, number)))
	}
	if err := unix.Sendto(c.fd, r.Serialize(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := answer{sequence: c.sequence, handle: handle}
	for !answer.complete {
		n, _, err := unix.Recvfrom(c.fd, c.buffer, unix.MSG_TRUNC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n > len(c.buffer) {
			err = fmt.Errorf("a message of %d octets", n)
		}
		if err != nil {
			return err
		}
		if err := eachMessage(c.buffer[:n], answer.take); err != nil {
			return err
		}
	}
	switch {
	case answer.failed != nil:
		return answer.failed
	case answer.interrupted:
		return errInterrupted
	}
	return nil
}

// An answer is what has arrived of the answer to a request.
type answer struct {
	sequence    uint32
	handle      func(family uint8, body []byte) error
	complete    bool
	interrupted bool
	failed      error
}

// take handles one message. After an error of handle it goes on to the end of the answer.
func (a *answer) take(header unix.NlMsghdr, body []byte) {
	if header.Seq != a.sequence || a.complete {
		return
	}
	a.interrupted = a.interrupted || header.Flags&unix.NLM_F_DUMP_INTR != 0
	switch {
	case header.Type == unix.NLMSG_DONE || header.Type == unix.NLMSG_ERROR:
		a.complete = true
		if len(body) >= 4 {
			if code := int32(binary.NativeEndian.Uint32(body)); code < 0 {
				a.failed = unix.Errno(-code)
			}
		}
		return
	case len(body) < nl.SizeofNfgenmsg:
		return
	case a.failed == nil:
		a.failed = a.handle(body[0], body[nl.SizeofNfgenmsg:])
	}
	a.complete = header.Flags&unix.NLM_F_MULTI == 0
}

// eachMessage calls a function with each of some netlink messages.
func eachMessage(messages []byte, handle func(header unix.NlMsghdr, body []byte)) error {
	for len(messages) >= unix.SizeofNlMsghdr {
		h := unix.NlMsghdr{
			Len: binary.NativeEndian.Uint32(messages), Type: binary.NativeEndian.Uint16(messages[4:]), Flags: binary.NativeEndian.Uint16(messages[6:]),
			Seq: binary.NativeEndian.Uint32(messages[8:]), Pid: binary.NativeEndian.Uint32(messages[12:]),
		}
		if h.Len < unix.SizeofNlMsghdr || int(h.Len) > len(messages) {
			return fmt.Errorf("a netlink message of %d octets in %d", h.Len, len(messages))
		}
		handle(h, messages[unix.SizeofNlMsghdr:h.Len])
		messages = messages[min((int(h.Len)+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(messages)):]
	}
	return nil
}

// generation returns the number of changes of the rules of this network namespace. none: the kernel has no nf_tables.
func (c *client) generation() (id uint32, none bool, err error) {
	answer, _, err := c.ask(query{message: unix.NFT_MSG_GETGEN})
	switch {
	case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT):
		return 0, true, nil
	case err != nil:
		return 0, false, fmt.Errorf("read the generation of nftables: %w", err)
	case len(answer) != 1:
		return 0, false, fmt.Errorf("read the generation of nftables: %d answers", len(answer))
	}
	return answer[0].number(unix.NFTA_GEN_ID), false, nil
}
