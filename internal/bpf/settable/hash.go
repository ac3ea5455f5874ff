// SPDX-License-Identifier: Apache-2.0

package settable

import (
	"crypto/rand"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/util/kernelclock"
)

// The agent's version of bpf/set_table/set_table.h.

// InitSecret fills table_secret, which determines the sets of keys, with random numbers if it is empty. Programs must
// not use the tables yet.
func InitSecret(m *ebpf.Map) error {
	secret, err := ReadSecret(m)
	if err != nil || secret.Multipliers != [len(secret.Multipliers)]uint64{} {
		return err
	}
	random := (*[unsafe.Sizeof(secret.Multipliers)]byte)(unsafe.Pointer(&secret.Multipliers))
	rand.Read(random[:]) // never fails
	return m.Put(uint32(0), &secret)
}

// ReadSecret reads table_secret.
func ReadSecret(m *ebpf.Map) (secret Secret, err error) {
	if err := m.Lookup(uint32(0), &secret); err != nil {
		return secret, fmt.Errorf("read table table_secret: %w", err)
	}
	return secret, nil
}

// sumOf returns the sum of a key, which determines its sets and tag. words are the whole key.
func sumOf(secret *Secret, words []uint32) (sum uint64) {
	for i, word := range words {
		sum += secret.Multipliers[i] * uint64(word)
	}
	return (sum ^ sum>>32) * Mix
}

// First returns the first set of a key with a sum, in a table with a number of sets.
func First(sum uint64, sets uint32) uint32 { return uint32(sum >> 32 * uint64(sets) >> 32) }

// Second returns the set to which the entry of a key spills.
func Second(sum uint64, sets uint32) uint32 {
	second := uint32(sum & 0xffffffff * uint64(sets) >> 32)
	if second == First(sum, sets) {
		second = (second + 1) % sets
	}
	return second
}

// Tag returns the tag of a key by its hash; never 0.
func Tag(hash uint32) uint32 { return max(hash&^Claimed, 1) }

// Tick returns the time in ticks, the unit of eviction marks.
func Tick() uint32 { return uint32(kernelclock.Coarse() >> 20) }

// Expired reports whether the tick of a mark has passed.
func Expired(until, now uint32) bool { return int32(now-until) >= 0 }

// WeaklyOrdered returns 1 if CPUs of this architecture may reorder stores, else 0.
func WeaklyOrdered() uint8 {
	if runtime.GOARCH == "amd64" {
		return 0
	}
	return 1
}
