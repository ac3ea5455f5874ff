// SPDX-License-Identifier: Apache-2.0

package settable

import (
	"crypto/rand"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The agent's version of bpf/set_table/set_table.h.

// InitSecret gives table_secret, from which the sets of keys follow, random numbers if it has
// none. Not while programs use the tables.
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

// sumOf is what a key's sets and tag follow from; words are all of the key.
func sumOf(secret *Secret, words []uint32) (sum uint64) {
	for i, word := range words {
		sum += secret.Multipliers[i] * uint64(word)
	}
	return (sum ^ sum>>32) * Mix
}

// First is the first set of a key, of so many.
func First(sum uint64, sets uint32) uint32 { return uint32(sum >> 32 * uint64(sets) >> 32) }

// Second is the set of a key that its entry spills to, of so many.
func Second(sum uint64, sets uint32) uint32 {
	second := uint32(sum & 0xffffffff * uint64(sets) >> 32)
	if second == First(sum, sets) {
		second = (second + 1) % sets
	}
	return second
}

// Tag is the tag in a key's place.
func Tag(hash uint32) uint32 { return max(hash&^Claimed, 1) }

// Tick is the clock of the marks.
func Tick() (uint32, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now)
	return uint32(now.Nano() >> 20), err
}

// Expired says whether the tick of a mark has passed.
func Expired(until, now uint32) bool { return int32(now-until) >= 0 }

// WeaklyOrdered says whether a CPU here may make its writes seen in another order: 1, or 0.
func WeaklyOrdered() uint8 {
	if runtime.GOARCH == "amd64" {
		return 0
	}
	return 1
}
