// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"encoding/binary"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Registers of 4 octets, which a key of several parts needs side by side (linux/netfilter/nf_tables.h).
const (
	register1 = 8 + iota
	register2
)

// Directions of conntrack (enum ip_conntrack_dir).
const (
	original = iota
	reply
)

func match(parts ...[]expr.Any) (all []expr.Any) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func established() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED), Xor: make([]byte, 4),
		},
		&expr.Cmp{Register: 1, Op: expr.CmpOpNeq, Data: make([]byte, 4)},
	}
}

func between(devices *nftables.Set) []expr.Any {
	return match(metaIn(expr.MetaKeyIIF, devices), metaIn(expr.MetaKeyOIF, devices))
}

func metaIn(key expr.MetaKey, set *nftables.Set) []expr.Any {
	return append([]expr.Any{&expr.Meta{Key: key, Register: 1}}, in(set, 1)...)
}

func in(set *nftables.Set, register uint32) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: register, SetName: set.Name, SetID: set.ID}}
}

func family(number byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Register: 1, Op: expr.CmpOpEq, Data: []byte{number}},
	}
}

// packets matches flows with at least this many packets in both directions together. nf_tables turns
// nf_conntrack_acct on when such a rule is added (nft_ct_get_init).
func packets(atLeast uint64) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyPKTS, Register: 1},
		&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 8, Size: 8},
		&expr.Cmp{Register: 1, Op: expr.CmpOpGte, Data: binary.BigEndian.AppendUint64(nil, atLeast)},
	}
}

func direction(which byte) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1},
		&expr.Cmp{Register: 1, Op: expr.CmpOpEq, Data: []byte{which}},
	}
}

// ctIn matches flows of which a part of a direction's tuple is in a set. The kernel reads the first octet of the
// direction; google/nftables v0.3.0 writes four, in network byte order.
func ctIn(key expr.CtKey, direction uint32, set *nftables.Set) []expr.Any {
	return append([]expr.Any{&expr.Ct{Key: key, Direction: direction << 24, Register: 1}}, in(set, 1)...)
}

func flowID() []expr.Any {
	return []expr.Any{&expr.Ct{Key: unix.NFT_CT_ID, Register: 1}}
}

// nextHop loads the key of the sets of next hops: output device and address, of the translated packet's route.
func nextHop(key expr.RtKey) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIF, Register: register1},
		&expr.Rt{Key: key, Register: register2},
	}
}

func update(set *nftables.Set, register uint32, timeout time.Duration) []expr.Any {
	return []expr.Any{&expr.Dynset{
		SrcRegKey: register, SetName: set.Name, SetID: set.ID, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: timeout,
	}}
}

func goTo(chain *nftables.Chain) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain.Name}}
}

func leave() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}} }

func offload(flowtable string) []expr.Any { return []expr.Any{&expr.FlowOffload{Name: flowtable}} }
