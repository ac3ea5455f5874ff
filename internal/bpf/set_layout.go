// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"unsafe"

	"beeline.io/beeline/internal/bpf/settable"
)

// The compiler compares what package settable knows of sets with bpf/set_table/types.h.
var (
	_ [SockSetTableSizeSET_PLACES]byte  = [settable.Places]byte{}
	_ [SockSetMixSET_MIX_HIGH]struct{}  = [settable.Mix >> 32]struct{}{}
	_ [SockSetMixSET_MIX_LOW]struct{}   = [settable.Mix & 0xffffffff]struct{}{}
	_ [SockSetRankSET_RANK_BITS]byte    = [settable.RankBits]byte{}
	_ [SockSetRankSET_RANK_CLOSING]byte = [settable.RankClosing]byte{}
	_ [SockSetRankSET_RANK_CLOSED]byte  = [settable.RankClosed]byte{}

	_ [unsafe.Sizeof(EdgeTCSetTags{})]byte           = [unsafe.Sizeof(settable.SetTags{})]byte{}
	_ [unsafe.Offsetof(EdgeTCSetTags{}.Tags)]byte    = [unsafe.Offsetof(settable.SetTags{}.Tags)]byte{}
	_ [unsafe.Offsetof(EdgeTCSetTags{}.Spilled)]byte = [unsafe.Offsetof(settable.SetTags{}.Spilled)]byte{}

	_ [unsafe.Sizeof(EdgeTCSetEviction{})]byte           = [unsafe.Sizeof(settable.Eviction{})]byte{}
	_ [unsafe.Offsetof(EdgeTCSetEviction{}.Expires)]byte = [unsafe.Offsetof(settable.Eviction{}.Expires)]byte{}
	_ [unsafe.Offsetof(EdgeTCSetEviction{}.Owner)]byte   = [unsafe.Offsetof(settable.Eviction{}.Owner)]byte{}

	_ [unsafe.Sizeof(EdgeTCSetEvictions{})]byte             = [unsafe.Sizeof(settable.Evictions{})]byte{}
	_ [unsafe.Offsetof(EdgeTCSetEvictions{}.Evictions)]byte = [unsafe.Offsetof(settable.Evictions{}.Evictions)]byte{}

	_ [len(SockSetSecret{}.Multipliers)]byte = [len(settable.Secret{}.Multipliers)]byte{}
	_ [unsafe.Sizeof(SockSetSecret{})]byte   = [unsafe.Sizeof(settable.Secret{})]byte{}
)
