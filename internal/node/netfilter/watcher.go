// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"fmt"
	"slices"
)

// A Watcher searches the rules of a network namespace for flow offload, and notices when they change.
type Watcher struct {
	finder Finder // reads what has changed of what it has read
	own    []string
	events *events // of all; nil: the kernel has no nf_tables

	haveOthers    bool // iptables-legacy and functions at hooks were read
	othersChanged bool // and have changed since Changed was called
}

// NewWatcher watches the rules of the caller's network namespace. own are tables whose rules do not count, such as
// "inet beeline_offload"; that somebody deletes the first of them is a change.
func NewWatcher(own ...string) (*Watcher, error) {
	e, err := newEvents()
	if err != nil {
		return nil, fmt.Errorf("watch the rules of nftables: %w", err)
	}
	w := &Watcher{own: own, events: e}
	if err := w.finder.Follow(); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// NewEdgeWatcher watches the rules of the caller's network namespace for the edge.
func NewEdgeWatcher() (*Watcher, error) {
	w, err := NewWatcher()
	if err == nil {
		w.finder.legacyRules = true
	}
	return w, err
}

// Close ends the watch.
func (w *Watcher) Close() {
	for _, e := range []*events{w.events, w.finder.nft.changes.events} {
		if e != nil {
			e.close()
		}
	}
}

// Find searches for what flows between devices would bypass. The caller is in the network namespace of NewWatcher.
func (w *Watcher) Find(devices []Device) (found *Findings, err error) {
	err = w.finder.retry(func() error {
		if err := w.read(); err != nil {
			return err
		}
		found, err = findForOffload(devices, slices.DeleteFunc(w.finder.all(), w.isOwn))
		return err
	})
	return found, err
}

func (w *Watcher) read() error {
	if err := w.finder.readNFTables(); err != nil {
		return err
	}
	return w.readOthers()
}

func (w *Watcher) readOthers() error {
	changed, err := w.finder.readOthers()
	w.othersChanged = w.othersChanged || w.haveOthers && changed
	w.haveOthers = w.haveOthers || err == nil
	return err
}

func (w *Watcher) isOwn(b base) bool {
	t, ok := b.table.(*nftTable)
	return ok && slices.Contains(w.own, tableName(t.family, t.name))
}

// Changed reports whether rules have changed since the last call; the first time, since NewWatcher. Of iptables-legacy
// it knows which chains have rules, and which functions are at hooks, at most othersAge ago. It costs a few
// microseconds if nothing has changed. Elements that packets add to sets, or that time out, are no change. The caller
// is in the network namespace of NewWatcher.
func (w *Watcher) Changed() (changed bool, err error) {
	if w.events != nil {
		if changed, err = w.events.changed(w.own); err != nil {
			return true, fmt.Errorf("watch the rules of nftables: %w", err)
		}
	}
	if err := w.readOthers(); err != nil {
		return true, err
	}
	changed, w.othersChanged = changed || w.othersChanged, false
	return changed, nil
}
