// SPDX-License-Identifier: Apache-2.0

package optout

import (
	"errors"
	"fmt"
	"time"
)

// Table holds the cookies of the namespaces without the socket shortcut (datapath.Tables.OptedOut).
type Table interface {
	Put(cookie uint64, one uint32) error
	Delete(cookie uint64) error
	All() (map[uint64]uint32, error)
}

// add writes a pod's namespace to the table before it removes the pod's previous one. It also rewrites an
// existing row, in case another program removed it.
func (t *Tracker) add(p *pod, cookie uint64, now time.Time) {
	if err := t.table.Put(cookie, 1); err != nil {
		p.err = fmt.Errorf("cannot write it to the tables: %w", err)
		return
	}
	if p.cookie == cookie {
		return
	}
	t.held[cookie]++
	delete(t.leftover, cookie)
	t.remove(p, "it has another network namespace")
	p.cookie, p.since = cookie, now
	t.log.Info("opted out of the socket shortcut", "pod", p.Pod.Namespace+"/"+p.Pod.Name, "because of", p.Because, "cookie", cookie)
}

// remove removes a pod's namespace from the table.
func (t *Tracker) remove(p *pod, why string) {
	cookie := p.cookie
	if cookie == 0 {
		return
	}
	p.cookie = 0
	if t.held[cookie]--; t.held[cookie] > 0 {
		return
	}
	delete(t.held, cookie)
	t.log.Info("no longer opted out of the socket shortcut", "pod", p.Pod.Namespace+"/"+p.Pod.Name, "why", why, "cookie", cookie)
	if err := t.table.Delete(cookie); err != nil {
		t.log.Error("cannot remove a pod's namespace from the tables; retrying", "error", err)
		t.leftover[cookie] = true
	}
}

// removeLeftover removes namespaces that an earlier agent added and no pod has claimed, once every pod has been
// scanned without an error. A pod without a process at that time has no socket either.
func (t *Tracker) removeLeftover() {
	roots, _, _ := t.follower.Health()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.known || len(t.pods) > 0 && len(roots) == 0 {
		return
	}
	for _, p := range t.pods {
		if !p.scanned || p.err != nil {
			return
		}
	}
	for cookie := range t.leftover {
		if err := t.table.Delete(cookie); err != nil {
			t.log.Error("cannot remove a leftover namespace from the tables; retrying", "error", err)
			continue
		}
		delete(t.leftover, cookie)
	}
}

// Audit compares the table with the expected contents, repairs it, and returns the number of differences.
// Before SetPods it does nothing.
func (t *Tracker) Audit() (repairs int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.known || len(t.leftover) > 0 {
		return 0, nil // the table may hold rows whose pods are not known yet
	}
	there, err := t.table.All()
	if err != nil {
		return 0, err
	}
	for cookie := range t.held {
		if there[cookie] == 0 {
			repairs++
			err = errors.Join(err, t.table.Put(cookie, 1))
		}
		delete(there, cookie)
	}
	for cookie := range there {
		repairs++
		err = errors.Join(err, t.table.Delete(cookie))
	}
	return repairs, err
}
