// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"crypto/rand"
	"errors"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
)

type halfOpenSet = EdgeTCHalfOpenSet

const (
	halfOpenPlaces  = len(halfOpenSet{}.Tags)
	halfOpenClaimed = uint32(1) << 31 // HALF_OPEN_CLAIMED: a record is being written there
)

// halfOpenFlows are the records of flows of which one side has been heard (bpf/lib/half_open.h).
// The programs change them meanwhile. What is looked at is mapped for as long as that takes.
type halfOpenFlows struct {
	m    *ebpf.Map
	gone *ebpf.Map // where the counts go of records that are deleted
}

func (h halfOpenFlows) Max() uint32 { return h.setCount() * uint32(halfOpenPlaces) }

// setCount is without the entry behind the last set, which has the secret.
func (h halfOpenFlows) setCount() uint32 { return h.m.MaxEntries() - 1 }

// halfOpenSecret is what keys are multiplied by to find their sets (struct half_open_secret).
type halfOpenSecret struct {
	Multipliers [unsafe.Sizeof(Tuple{}) / 4]uint64
}

// secret is mapped until unmap.
func (h halfOpenFlows) secret() (s *halfOpenSecret, unmap func() error, err error) {
	sets, unmap, err := h.sets(h.setCount(), 1)
	if err != nil {
		return nil, nil, err
	}
	return (*halfOpenSecret)(unsafe.Pointer(&sets[0])), unmap, nil
}

// HideHalfOpenSets gives a table of half-open flows the secret by which keys find their sets, if
// it has none. Not while programs use the table.
func HideHalfOpenSets(m *ebpf.Map) error {
	s, unmap, err := halfOpenFlows{m: m}.secret()
	if err != nil {
		return err
	}
	if *s == (halfOpenSecret{}) {
		random := (*[unsafe.Sizeof(*s)]byte)(unsafe.Pointer(s))
		rand.Read(random[:]) // never fails
	}
	return unmap()
}

// sets maps so many from one on.
func (h halfOpenFlows) sets(first, count uint32) (sets []halfOpenSet, unmap func() error, err error) {
	from := uintptr(first) * arrayStride(h.m)
	memory, unmap, err := mapMemory(h.m, from, from+uintptr(count)*arrayStride(h.m))
	if err != nil {
		return nil, nil, err
	}
	return unsafe.Slice((*halfOpenSet)(unsafe.Pointer(&memory[0])), count), unmap, nil
}

// index is the set in which a key is, and halfOpenTag the tag there of one with a hash.
func (h halfOpenFlows) index(s *halfOpenSecret, key *Tuple) uint32 {
	sum := uint64(0)
	for i, word := range (*[len(s.Multipliers)]uint32)(unsafe.Pointer(key)) {
		sum += s.Multipliers[i] * uint64(word)
	}
	return uint32(halfOpenMix(sum) >> 32 * uint64(h.setCount()) >> 32)
}

// halfOpenMix has the sums of keys that follow each other fall anywhere.
func halfOpenMix(sum uint64) uint64 {
	const multiplier = uint64(EdgeTCHalfOpenMixHALF_OPEN_MIX_HIGH)<<32 | uint64(EdgeTCHalfOpenMixHALF_OPEN_MIX_LOW)
	return (sum ^ sum>>32) * multiplier
}

func halfOpenTag(hash uint32) uint32 { return max(hash&^halfOpenClaimed, 1) }

// readPlace copies the record in a place; false if there is none, or another one by now.
func readPlace(s *halfOpenSet, place int) (key Tuple, t Track, ok bool) {
	tag := atomic.LoadUint32(&s.Tags[place])
	if tag == 0 || tag&halfOpenClaimed != 0 {
		return key, t, false
	}
	key, t = s.Records[place].Key, s.Records[place].Track
	return key, t, atomic.LoadUint32(&s.Tags[place]) == tag && t.Tag == tupleHash(&key)
}

func (h halfOpenFlows) Walk(f func(Tuple, *Track) bool) error {
	for first, count := uint32(0), uint32(max(1, readWindow/arrayStride(h.m))); first < h.setCount(); first += count {
		count = min(count, h.setCount()-first)
		sets, unmap, err := h.sets(first, count)
		if err != nil {
			return err
		}
		more := walkSets(sets, f)
		if err := unmap(); err != nil || !more {
			return err
		}
	}
	return nil
}

func walkSets(sets []halfOpenSet, f func(Tuple, *Track) bool) (more bool) {
	for i := range sets {
		for place := range halfOpenPlaces {
			if key, t, ok := readPlace(&sets[i], place); ok && !f(key, &t) {
				return false
			}
		}
	}
	return true
}

// find calls f with the set and place of a key's record, if there is one.
func (h halfOpenFlows) find(key *Tuple, f func(s *halfOpenSet, place int, t *Track)) error {
	hash := tupleHash(key)
	secret, forget, err := h.secret()
	if err != nil {
		return err
	}
	sets, unmap, err := h.sets(h.index(secret, key), 1)
	if err = errors.Join(err, forget()); err != nil {
		return err
	}
	for place := range halfOpenPlaces {
		if atomic.LoadUint32(&sets[0].Tags[place]) != halfOpenTag(hash) {
			continue
		}
		if other, t, ok := readPlace(&sets[0], place); ok && other == *key {
			f(&sets[0], place, &t)
			break
		}
	}
	return unmap()
}

func (h halfOpenFlows) Get(key Tuple) (found *Track, err error) {
	err = h.find(&key, func(_ *halfOpenSet, _ int, t *Track) { found = t })
	return found, err
}

func (h halfOpenFlows) Delete(key Tuple) (existed bool, err error) {
	var failed error
	err = h.find(&key, func(s *halfOpenSet, place int, t *Track) {
		if existed = atomic.CompareAndSwapUint32(&s.Tags[place], halfOpenTag(t.Tag), 0); existed {
			failed = keepTraffic(h.gone, t)
		}
	})
	return existed, errors.Join(err, failed)
}

// copyHalfOpen copies the records into a table of another size, which nobody uses yet. What
// finds its set full stays behind.
func copyHalfOpen(to, from *ebpf.Map) error {
	target := halfOpenFlows{m: to}
	if err := HideHalfOpenSets(to); err != nil {
		return err
	}
	sets, unmap, err := target.sets(0, to.MaxEntries())
	if err != nil {
		return err
	}
	secret := (*halfOpenSecret)(unsafe.Pointer(&sets[target.setCount()]))
	err = halfOpenFlows{m: from}.Walk(func(key Tuple, t *Track) bool {
		s := &sets[target.index(secret, &key)]
		for place := range halfOpenPlaces {
			if s.Tags[place] == 0 {
				s.Tags[place] = halfOpenTag(t.Tag)
				s.Records[place].Key, s.Records[place].Track = key, *t
				break
			}
		}
		return true
	})
	return errors.Join(err, unmap())
}

// weaklyOrdered says whether a CPU here may make its writes seen in another order: 1, or 0.
func weaklyOrdered() uint8 {
	if runtime.GOARCH == "amd64" {
		return 0
	}
	return 1
}

// tupleHash is that of bpf/lib/tuple.h: the tag of a record is that of its key.
func tupleHash(t *Tuple) uint32 {
	words := (*[unsafe.Sizeof(Tuple{}) / 8]uint64)(unsafe.Pointer(t))
	hash := words[0]*0x9e3779b97f4a7c15 ^ words[1]*0xd6e8feb86659fd93 ^ words[2]*0xc2b2ae3d27d4eb4f ^
		words[3]*0xff51afd7ed558ccd ^ words[4]*0xa0761d6478bd642f
	hash = (hash ^ hash>>32) * 0x9e3779b97f4a7c15
	return uint32((hash ^ hash>>29) * 0xd6e8feb86659fd93 >> 32)
}
