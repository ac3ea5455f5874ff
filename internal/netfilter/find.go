// SPDX-License-Identifier: Apache-2.0

// Package netfilter searches the packet filters of a network namespace, in nftables and iptables, for rules by which
// packets on the pod shortcut would fare otherwise than on the stack. It follows the packets that the shortcut may
// take through the rules, by their devices, addresses, protocols and state of conntrack. What it does not understand
// counts as a filter.
package netfilter

import (
	"errors"
	"reflect"
	"time"

	"golang.org/x/sys/unix"
)

// legacyAge is how old what is known of iptables-legacy may be: the kernel has no number of its changes, and reading
// policies copies the table that they are in.
const legacyAge = 800 * time.Millisecond

// A Finder finds filters. It searches again when rules or the subject have changed.
type Finder struct {
	generation uint32
	bases      []base // of nftables
	legacy     []base
	legacyTime time.Time
	subject    Subject
	found      []Finding
	upToDate   bool
	haveNFT    bool
	changes    changes
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
func (f *Finder) read() error {
	if err := f.readNFTables(); err != nil {
		return err
	}
	_, err := f.readLegacy()
	return err
}

// all returns the base chains.
func (f *Finder) all() []base { return append(append([]base{}, f.bases...), f.legacy...) }

func (f *Finder) find(s Subject) ([]Finding, error) {
	if err := f.read(); err != nil {
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

// readLegacy reads which chains of iptables-legacy have rules, if that is older than legacyAge, and reports whether it
// has changed.
func (f *Finder) readLegacy() (changed bool, err error) {
	if time.Since(f.legacyTime) < legacyAge {
		return false, nil
	}
	chains, err := readLegacy()
	if err != nil {
		return false, err
	}
	changed = !reflect.DeepEqual(chains, f.legacy)
	f.legacyTime, f.legacy, f.upToDate = time.Now(), chains, f.upToDate && !changed
	return changed, nil
}
