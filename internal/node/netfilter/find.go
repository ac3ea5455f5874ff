// SPDX-License-Identifier: Apache-2.0

// Package netfilter searches the packet filters of a network namespace, in nftables and iptables, for rules by which
// packets on the pod shortcut would fare otherwise than on the stack. It follows the packets that the shortcut may
// take through the rules, by their devices, addresses, protocols and state of conntrack. What it does not understand
// counts as a filter.
package netfilter

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"golang.org/x/sys/unix"
)

// othersAge is how old what is known of iptables-legacy and of functions at hooks may be: the kernel has no number of
// their changes, and reading policies of iptables-legacy copies the table that they are in.
const othersAge = 800 * time.Millisecond

// A Finder finds filters. It searches again when rules or the subject have changed.
type Finder struct {
	nft        ruleset
	generation uint32 // of nft
	dirty      named  // what of nft has changed
	programs   programs
	others     []base // of iptables-legacy, and functions at hooks
	// legacyRules: the rules of iptables-legacy are read.
	legacyRules bool
	othersTime  time.Time
	subject     Subject
	found       []Finding
	upToDate    bool
	haveNFT     bool
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
	client, err := newClient()
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT): // no nfnetlink, and so no nf_tables
	case err != nil:
		return fmt.Errorf("ask nftables: %w", err)
	default:
		defer client.close()
	}
	f.nft.client = client
	defer func() { f.nft.client = nil }()
	for range findAttempts {
		if err = search(); err == nil {
			f.nft.settle()
			return nil
		}
		f.haveNFT = false
		if !errors.Is(err, unix.ENOENT) { // a chain that is gone
			break
		}
	}
	return err
}

// read reads rules that have changed.
func (f *Finder) read() error {
	if err := f.readNFTables(); err != nil {
		return err
	}
	_, err := f.readOthers()
	return err
}

// all returns the base chains.
func (f *Finder) all() []base { return append(append([]base{}, f.nft.bases...), f.others...) }

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

// readNFTables reads rules of nftables that have changed: if events say which, only these.
func (f *Finder) readNFTables() error {
	if f.nft.client == nil {
		return nil
	}
	id, none, err := f.catchUp()
	if err != nil {
		return err
	}
	expired, _ := f.nft.expired(time.Now())
	for _, set := range expired {
		f.dirty.addSet(set)
	}
	same := f.haveNFT && f.generation == id
	switch {
	case same && f.dirty.empty():
		return nil
	case none:
		f.nft.tables, f.nft.bases = nil, nil
	case f.haveNFT && !f.dirty.all && (same || f.dirty.generation == id):
		err = f.nft.refresh(f.dirty)
	default:
		err = f.nft.readAll()
	}
	f.upToDate, f.haveNFT = false, err == nil
	f.generation, f.dirty = id, named{}
	return err
}

// catchUp takes the events up to the present generation, which it returns. The kernel sends them after its change.
func (f *Finder) catchUp() (id uint32, none bool, err error) {
	const attempts, pause = 20, time.Millisecond
	for range attempts {
		if err = f.nft.changes.drain(&f.dirty); err != nil {
			return 0, false, err
		}
		if id, none, err = f.nft.client.generation(); err != nil || none {
			return id, none, err
		}
		if !f.haveNFT || f.nft.changes.events == nil || id == f.generation || id == f.dirty.generation {
			break
		}
		time.Sleep(pause)
	}
	return id, none, nil
}

// readOthers reads which chains of iptables-legacy have rules, and which functions are at hooks, if that is older than
// othersAge, and reports whether it has changed.
func (f *Finder) readOthers() (changed bool, err error) {
	if time.Since(f.othersTime) < othersAge {
		return false, nil
	}
	others, err := readLegacy(f.legacyRules)
	if err != nil {
		return false, err
	}
	functions, err := f.programs.readFunctions()
	if err != nil {
		return false, err
	}
	others = append(others, functions...)
	changed = !reflect.DeepEqual(others, f.others)
	f.othersTime, f.others, f.upToDate = time.Now(), others, f.upToDate && !changed
	return changed, nil
}
