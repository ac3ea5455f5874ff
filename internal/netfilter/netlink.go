// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/netdev"
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

// A query is a request to nf_tables. Names are zero-terminated.
type query struct {
	message int // NFT_MSG_*
	family  uint8
	dump    bool
	names   map[int]string
}

// send returns the attributes of each message of the answer, and its family.
func (q query) send() (all []attributes, families []uint8, err error) {
	flags := 0
	if q.dump {
		flags = unix.NLM_F_DUMP
	}
	messages, err := netdev.Dump(func() ([][]byte, error) {
		r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|q.message, flags)
		r.AddData(&nl.Nfgenmsg{NfgenFamily: q.family, Version: nl.NFNETLINK_V0})
		for kind, name := range q.names {
			r.AddData(nl.NewRtAttr(kind, nl.ZeroTerminated(name)))
		}
		return r.Execute(unix.NETLINK_NETFILTER, 0)
	})
	for _, m := range messages {
		if len(m) >= nl.SizeofNfgenmsg {
			all, families = append(all, parseAttributes(m[nl.SizeofNfgenmsg:])), append(families, m[0])
		}
	}
	return all, families, err
}

// generation returns the number of changes of the rules of this network namespace. none: the kernel has no nf_tables.
func generation() (id uint32, none bool, err error) {
	answer, _, err := query{message: unix.NFT_MSG_GETGEN}.send()
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
