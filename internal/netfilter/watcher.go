// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"fmt"
	"slices"
	"time"
)

// A Watcher searches the rules of a network namespace for flow offload, and notices when they change.
type Watcher struct {
	finder Finder
	own    []string
	events *events // nil: the kernel has no nf_tables

	legacy   [keySize]byte // of the rules that Changed has reported
	haveSeen bool
}

// NewWatcher watches the rules of the caller's network namespace. own are tables whose rules do not count, such as
// "inet beeline_offload"; that somebody deletes the first of them is a change.
func NewWatcher(own ...string) (*Watcher, error) {
	e, err := newEvents()
	if err != nil {
		return nil, fmt.Errorf("watch the rules of nftables: %w", err)
	}
	return &Watcher{own: own, events: e}, nil
}

// Close ends the watch.
func (w *Watcher) Close() {
	if w.events != nil {
		w.events.close()
	}
}

// Find searches for what flows between devices would bypass. The caller is in the network namespace of NewWatcher.
func (w *Watcher) Find(devices []Device) (found *Findings, err error) {
	err = w.finder.retry(func() error {
		if err := w.finder.read(w.legacyAge()); err != nil {
			return err
		}
		found, err = findForOffload(devices, slices.DeleteFunc(w.finder.all(), w.isOwn))
		return err
	})
	return found, err
}

func (w *Watcher) isOwn(b base) bool {
	t, ok := b.table.(*nftTable)
	return ok && slices.Contains(w.own, tableName(t.family, t.name))
}

// Changed reports whether rules have changed since the last call; the first time, since NewWatcher. It costs a few
// microseconds if nothing has changed, and with rules of iptables-legacy as much as reading these, at most once per
// legacyAge. Elements that packets add to sets, or that time out, are no change. The caller is in the network
// namespace of NewWatcher.
func (w *Watcher) Changed() (changed bool, err error) {
	if w.events != nil {
		if changed, err = w.events.changed(w.own); err != nil {
			return true, fmt.Errorf("watch the rules of nftables: %w", err)
		}
	}
	if err := w.finder.readLegacy(w.legacyAge()); err != nil {
		return true, err
	}
	key := w.finder.legacyKey
	changed = changed || w.haveSeen && key != w.legacy
	w.legacy, w.haveSeen = key, true
	return changed, nil
}

// Rules of iptables-legacy are read again when they are this old; many rules, of which reading takes milliseconds,
// less often.
const (
	offloadLegacyAge = 800 * time.Millisecond
	largeLegacy      = 1 << 20 // octets
)

func (w *Watcher) legacyAge() time.Duration {
	if w.finder.legacySize > largeLegacy {
		return legacyAge
	}
	return offloadLegacyAge
}
