// SPDX-License-Identifier: Apache-2.0

// Package netfilter searches the packet filters of a network namespace, in nftables and iptables, for rules by which
// packets on the pod shortcut would fare otherwise than on the stack. It follows the packets that the shortcut may
// take through the rules, by their devices, addresses, protocols and state of conntrack. What it does not understand
// counts as a filter.
package netfilter

import (
	"crypto/sha256"
	"errors"
	"reflect"
	"time"

	"golang.org/x/sys/unix"
)

// legacyAge is how old the rules of iptables-legacy may be: the kernel has no number of their changes.
const legacyAge = 3 * time.Second

const keySize = sha256.Size

// A Finder finds filters. It searches again when rules or the subject have changed.
type Finder struct {
	generation uint32
	bases      []base // of nftables
	legacy     []base
	legacyKey  [keySize]byte
	legacySize int // in octets
	legacyTime time.Time
	subject    Subject
	found      []Finding
	upToDate   bool
	haveNFT    bool
}

// findAttempts is how often Find tries while rules change.
const findAttempts = 3

// Find returns the filters that concern a subject's packets in the network namespace of the caller.
func (f *Finder) Find(s Subject) (found []Finding, err error) {
	err = f.retry(func() error {
		found, err = f.find(s)
		return err
	})
	return found, err
}

// retry repeats a search while rules change.
func (f *Finder) retry(search func() error) (err error) {
	for range findAttempts {
		if err = search(); !errors.Is(err, unix.ENOENT) { // a chain that is gone
			return err
		}
		f.haveNFT = false
	}
	return err
}

// read reads rules that have changed.
func (f *Finder) read(legacyAge time.Duration) error {
	if err := f.readNFTables(); err != nil {
		return err
	}
	return f.readLegacy(legacyAge)
}

// all returns the base chains.
func (f *Finder) all() []base { return append(append([]base{}, f.bases...), f.legacy...) }

func (f *Finder) find(s Subject) ([]Finding, error) {
	if err := f.read(legacyAge); err != nil {
		return nil, err
	}
	if f.upToDate && reflect.DeepEqual(f.subject, s) {
		return f.found, nil
	}
	found, err := find(&s, f.all())
	f.upToDate = err == nil
	f.haveNFT = err == nil
	f.subject, f.found = s, found
	return found, err
}

func (f *Finder) readNFTables() error {
	id, none, err := generation()
	if err != nil {
		return err
	}
	if f.haveNFT && f.generation == id {
		return nil
	}
	f.upToDate, f.bases = false, nil
	if !none {
		if f.bases, err = readNFTables(); err != nil {
			return err
		}
	}
	f.haveNFT, f.generation = true, id
	return nil
}

// readLegacy reads rules of iptables-legacy that are older than an age.
func (f *Finder) readLegacy(age time.Duration) error {
	if time.Since(f.legacyTime) < age {
		return nil
	}
	tables, err := readLegacyTables()
	if err != nil {
		return err
	}
	var keys []byte
	for _, t := range tables {
		keys = append(keys, t.key()...)
	}
	f.legacyTime, f.legacySize = time.Now(), len(keys)
	key := sha256.Sum256(keys)
	if key == f.legacyKey {
		return nil
	}
	var bases []base
	for _, t := range tables {
		of, err := t.bases()
		if err != nil {
			return err
		}
		bases = append(bases, of...)
	}
	f.legacy, f.legacyKey, f.upToDate = bases, key, false
	return nil
}
