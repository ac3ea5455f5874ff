// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// How long after one look at a pod the next follows, if nothing tells of a
// change before. Processes that enter a cgroup are not told of (on cgroup v2 the
// first one is), so a pod that is just being started is looked at often.
const (
	eagerPause   = 10 * time.Millisecond
	eagerTime    = 3 * time.Second        // after its cgroup, or one in it, was made
	emptyPause   = 100 * time.Millisecond // it has a cgroup and no process yet
	missingPause = time.Second            // it has no cgroup yet, which would be told of
	foundPause   = 5 * time.Second        // its namespace may be another by now
)

// A search for the kubelet's directories takes at most one part in searchShare
// of the time.
const searchShare = 50

func (p *pod) pause(now time.Time) time.Duration {
	switch {
	case p.seen:
		return foundPause
	case len(p.dirs) == 0:
		return missingPause
	case now.Before(p.eager):
		return eagerPause
	}
	return emptyPause
}

// Run follows the pods until ctx ends. It always returns nil.
func (t *Tracker) Run(ctx context.Context) error {
	w := &watcher{open: t.notify, dirs: map[string]string{}}
	defer w.close()
	for {
		t.searchAgain()
		t.mu.Lock()
		t.watchErr = w.watch(t.watched())
		// Watch first, then look: what happens from here on is told of.
		for uid := range w.takeFresh() {
			t.due(uid, time.Now())
		}
		t.lookAt(time.Now())
		t.dropLeftover()
		next := t.nextLook()
		t.mu.Unlock()
		if !t.wait(ctx, w, next) {
			return nil
		}
	}
}

// searchAgain looks for other directories of a kubelet while a pod is missing.
func (t *Tracker) searchAgain() {
	t.mu.Lock()
	missing := false
	for _, p := range t.pods {
		missing = missing || len(p.dirs) == 0
	}
	again := t.search.at.Add(max(missingPause, searchShare*t.search.took))
	t.mu.Unlock()
	if !missing || time.Now().Before(again) {
		return
	}
	begin := time.Now()
	from, err := t.begin()
	roots, searchErr := search(from) // without the lock: it may take a while
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tookRoots(begin, roots, errors.Join(err, searchErr))
}

// nextLook is when there is something to do again; the zero time: not before
// something changes.
func (t *Tracker) nextLook() (next time.Time) {
	for _, p := range t.pods {
		if next.IsZero() || p.next.Before(next) {
			next = p.next
		}
	}
	if again := time.Now().Add(missingPause); t.known && len(t.leftover) > 0 && (next.IsZero() || again.Before(next)) {
		return again
	}
	return next
}

// due makes a pod be looked at soon; the UID "" stands for all that are missing.
func (t *Tracker) due(uid string, now time.Time) {
	if p := t.pods[uid]; p != nil {
		p.next, p.eager, p.listed = now, now.Add(eagerTime), time.Time{}
		return
	}
	for _, p := range t.pods {
		if !p.seen {
			p.next, p.listed = now, time.Time{}
		}
	}
}

// wait returns true when it is time to look again, and false when ctx has ended.
func (t *Tracker) wait(ctx context.Context, w *watcher, next time.Time) bool {
	var clock <-chan time.Time
	if !next.IsZero() {
		timer := time.NewTimer(time.Until(next))
		defer timer.Stop()
		clock = timer.C
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-t.wake:
			return true
		case <-clock:
			return true
		case ev, ok := <-w.events():
			if !ok {
				return true
			}
			uid, concerns := w.concerns(ev)
			if !concerns {
				continue
			}
			t.mu.Lock()
			t.due(uid, time.Now())
			t.mu.Unlock()
			return true
		case <-w.errors(): // the kernel's queue overflowed: anything may have changed
			t.mu.Lock()
			for uid := range t.pods {
				t.due(uid, time.Now())
			}
			t.mu.Unlock()
			return true
		}
	}
}

// watched are the directories in which something can happen that matters, each
// with the UID of the pod whose it is; "" for those of all pods, if one is
// missing.
func (t *Tracker) watched() map[string]string {
	all := map[string]string{}
	missing := false
	for uid, p := range t.pods {
		for i, dir := range p.dirs {
			if i == 0 || !p.seen { // one tells enough of what is known
				all[dir] = uid
			}
		}
		missing = missing || len(p.dirs) == 0
	}
	if !missing {
		return all
	}
	for _, root := range t.roots {
		all[filepath.Dir(root)] = ""
		for _, group := range groups(root) {
			all[group] = ""
		}
	}
	for dir := range all {
		if _, err := os.Lstat(dir); err != nil {
			delete(all, dir)
		}
	}
	return all
}

// watcher hears of changes in directories.
type watcher struct {
	open   func() (*fsnotify.Watcher, error)
	notify *fsnotify.Watcher // nil if there is none
	dirs   map[string]string // with the UID of the pod they are of
	fresh  map[string]bool   // UIDs of those watched since the last look
}

// watch sets what is watched. Where that fails, the periodic look remains.
func (w *watcher) watch(dirs map[string]string) (err error) {
	if w.notify == nil {
		if len(dirs) == 0 {
			return nil
		}
		if w.notify, err = w.open(); err != nil {
			w.notify = nil
			return err
		}
	}
	for dir := range w.dirs {
		if _, wanted := dirs[dir]; !wanted {
			_ = w.notify.Remove(dir) // gone with the directory, maybe
			delete(w.dirs, dir)
		}
	}
	for dir, uid := range dirs {
		if _, watched := w.dirs[dir]; watched {
			w.dirs[dir] = uid
			continue
		}
		if e := w.notify.Add(dir); ignoreGone(e) != nil {
			err = e
		} else if e == nil {
			w.dirs[dir] = uid
			if w.fresh == nil {
				w.fresh = map[string]bool{}
			}
			w.fresh[uid] = true
		}
	}
	return err
}

// takeFresh returns the UIDs whose directories are watched only now.
func (w *watcher) takeFresh() map[string]bool {
	fresh := w.fresh
	w.fresh = nil
	return fresh
}

// concerns says which pod an event is about: cgroups come and go, and the first
// process enters or the last one leaves. Other files change all the time.
func (w *watcher) concerns(ev fsnotify.Event) (uid string, ok bool) {
	if ev.Has(fsnotify.Remove) {
		if uid, ok := w.dirs[ev.Name]; ok { // itself; the kernel watches it no more
			delete(w.dirs, ev.Name)
			return uid, true
		}
	}
	if !ev.Has(fsnotify.Create) && !ev.Has(fsnotify.Remove) && filepath.Base(ev.Name) != "cgroup.events" {
		return "", false
	}
	uid, ok = w.dirs[filepath.Dir(ev.Name)]
	return uid, ok
}

// events and errors are nil, on which nothing ever comes, without a watcher.
func (w *watcher) events() <-chan fsnotify.Event {
	if w.notify == nil {
		return nil
	}
	return w.notify.Events
}

func (w *watcher) errors() <-chan error {
	if w.notify == nil {
		return nil
	}
	return w.notify.Errors
}

func (w *watcher) close() {
	if w.notify != nil {
		_ = w.notify.Close()
	}
}
