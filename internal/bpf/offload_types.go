// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"net/netip"

	"beeline.io/beeline/internal/bpf/settable"
)

// From returns the source of a tuple.
func (t *OffloadTuple) From() netip.AddrPort { return AddrPortFrom(t.Source.Bytes, t.SourcePort) }

// To returns the destination of a tuple.
func (t *OffloadTuple) To() netip.AddrPort {
	return AddrPortFrom(t.Destination.Bytes, t.DestinationPort)
}

// offloadKeyMix is OFFLOAD_KEY_MIX of bpf/offload/cache.h.
const offloadKeyMix = uint64(0xd6e8feb86659fd93)

// Sum is offload_sum of bpf/offload/cache.h: it determines the set of the key and its tag.
func (k *OffloadOffloadKey) Sum(secret *settable.Secret) uint64 {
	sum := settable.KeySum(secret, &k.Tuple)
	sum ^= (uint64(k.Tunnel)<<32 | uint64(k.Device)) * offloadKeyMix
	return sum ^ sum>>29
}
