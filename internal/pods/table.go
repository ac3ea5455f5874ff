// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"errors"
	"fmt"
	"time"
)

// Table holds the cookies of the namespaces without the socket shortcut
// (datapath.Tables.OptedOut).
type Table interface {
	Put(cookie uint64, one uint32) error
	Delete(cookie uint64) error
	All() (map[uint64]uint32, error)
}

// hold puts a pod's namespace into the table, before the one that it had there
// goes. It puts again what should be there already: no harm, and a cure if
// somebody has removed it.
func (t *Tracker) hold(p *pod, cookie uint64, now time.Time) {
	if err := t.table.Put(cookie, 1); err != nil {
		p.err = fmt.Errorf("it cannot be brought into the tables: %w", err)
		return
	}
	if p.cookie == cookie {
		return
	}
	t.held[cookie]++
	delete(t.leftover, cookie)
	t.forget(p, "it has another network namespace")
	p.cookie, p.since = cookie, now
	t.log.Info("opted out of the socket shortcut", "pod", p.Pod.Namespace+"/"+p.Pod.Name, "because of", p.Because, "cookie", cookie)
}

// forget takes a pod's namespace out of the table.
func (t *Tracker) forget(p *pod, why string) {
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
		t.log.Error("could not be removed from the tables; trying again", "error", err)
		t.leftover[cookie] = true
	}
}

// dropLeftover removes what an earlier agent left and no pod has claimed, as soon
// as every pod has been looked at without an error: one that has no process then
// has no socket either.
func (t *Tracker) dropLeftover() {
	if !t.known || len(t.pods) > 0 && len(t.roots) == 0 {
		return
	}
	for _, p := range t.pods {
		if !p.looked || p.err != nil {
			return
		}
	}
	for cookie := range t.leftover {
		if err := t.table.Delete(cookie); err != nil {
			t.log.Error("could not be removed from the tables; trying again", "error", err)
			continue
		}
		delete(t.leftover, cookie)
	}
}

// Audit compares the table with what it should hold, mends it, and says how many
// differences there were. Before Want it does nothing.
func (t *Tracker) Audit() (repairs int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.known || len(t.leftover) > 0 {
		return 0, nil // there is more in it than is known
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
