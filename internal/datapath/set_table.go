// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"crypto/rand"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The agent's version of bpf/set_table/set_table.h.

const (
	setPlaces   = int(SockSetTableSizeSET_PLACES)
	setClaimed  = uint32(1) << 31 // SET_CLAIMED: the entry of the place is being written
	setRankBits = int(SockSetRankSET_RANK_BITS)
)

type (
	setSecret = SockSetSecret
	setRank   = SockSetRank
)

// InitTableSecret sets table_secret, which determines the sets of keys, to random numbers, unless it is
// set. Programs must not use the tables meanwhile.
func InitTableSecret(m *ebpf.Map) error {
	secret, err := readTableSecret(m)
	if err != nil || secret.Multipliers != [len(secret.Multipliers)]uint64{} {
		return err
	}
	random := (*[unsafe.Sizeof(secret.Multipliers)]byte)(unsafe.Pointer(&secret.Multipliers))
	rand.Read(random[:]) // never fails
	return m.Put(uint32(0), &secret)
}

func readTableSecret(m *ebpf.Map) (secret setSecret, err error) {
	if err := m.Lookup(uint32(0), &secret); err != nil {
		return secret, fmt.Errorf("read table %s: %w", SockMapTableSecret, err)
	}
	return secret, nil
}

// setSum returns the sum that determines a key's sets and tag; words are all of the key.
func setSum(secret *setSecret, words []uint32) (sum uint64) {
	const mix = uint64(SockSetMixSET_MIX_HIGH)<<32 | uint64(SockSetMixSET_MIX_LOW)
	for i, word := range words {
		sum += secret.Multipliers[i] * uint64(word)
	}
	return (sum ^ sum>>32) * mix
}

// setFirst and setSecond return the two sets of a key, of a number of sets.
func setFirst(sum uint64, sets uint32) uint32 { return uint32(sum >> 32 * uint64(sets) >> 32) }

func setSecond(sum uint64, sets uint32) uint32 {
	second := uint32(sum & 0xffffffff * uint64(sets) >> 32)
	if second == setFirst(sum, sets) {
		second = (second + 1) % sets
	}
	return second
}

// setTag returns the tag in a key's place.
func setTag(hash uint32) uint32 { return max(hash&^setClaimed, 1) }

func markRank(owner uint32) setRank { return setRank(owner & (1<<setRankBits - 1)) }

// tickNow returns the time on the clock of the marks.
func tickNow() (uint32, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now)
	return uint32(now.Nano() >> 20), err
}

func markExpired(until, now uint32) bool { return int32(now-until) >= 0 }

// weaklyOrdered returns 1 if other CPUs may see a CPU's writes in another order, else 0.
func weaklyOrdered() uint8 {
	if runtime.GOARCH == "amd64" {
		return 0
	}
	return 1
}
