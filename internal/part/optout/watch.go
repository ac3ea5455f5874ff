// SPDX-License-Identifier: Apache-2.0

package optout

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Intervals between scans of a pod without a notification. A process that enters a cgroup causes none (on
// cgroup v2 only the first one does), so a starting pod is scanned often.
const (
	oftenInterval   = 10 * time.Millisecond
	oftenTime       = 3 * time.Second        // after its cgroup, or one below it, was created
	emptyInterval   = 100 * time.Millisecond // it has a cgroup but no process yet
	missingInterval = time.Second            // it has no cgroup yet; its creation causes a notification
	foundInterval   = 5 * time.Second        // its namespace may have changed
)

// searchShare limits the search for the kubelet's directories to 1/searchShare of the time.
const searchShare = 50

func (p *pod) interval(now time.Time) time.Duration {
	switch {
	case p.seen:
		return foundInterval
	case len(p.dirs) == 0:
		return missingInterval
	case now.Before(p.scanOftenUntil):
		return oftenInterval
	}
	return emptyInterval
}

// Run tracks the pods until ctx ends. It always returns nil.
func (t *Tracker) Run(ctx context.Context) error {
	w := &watcher{open: t.notify, dirs: map[string]string{}}
	defer w.close()
	for {
		t.searchAgain()
		t.mu.Lock()
		t.watchErr = w.watch(t.watched())
		// Watch first, then scan, so that no later change is missed.
		for uid := range w.takeFresh() {
			t.due(uid, time.Now())
		}
		t.scanDue(time.Now())
		t.removeLeftover()
		next := t.nextScan()
		t.mu.Unlock()
		if !t.wait(ctx, w, next) {
			return nil
		}
	}
}

// searchAgain searches for more kubelet directories while a pod is missing.
func (t *Tracker) searchAgain() {
	t.mu.Lock()
	missing := false
	for _, p := range t.pods {
		missing = missing || len(p.dirs) == 0
	}
	again := t.search.at.Add(max(missingInterval, searchShare*t.search.took))
	t.mu.Unlock()
	if !missing || time.Now().Before(again) {
		return
	}
	begin := time.Now()
	from, err := t.searchIn()
	roots, searchErr := search(from) // without the lock, because it may take a while
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setRoots(begin, roots, errors.Join(err, searchErr))
}

// nextScan returns when the next scan is due; the zero time if none is due without a change.
func (t *Tracker) nextScan() (next time.Time) {
	for _, p := range t.pods {
		if next.IsZero() || p.next.Before(next) {
			next = p.next
		}
	}
	if again := time.Now().Add(missingInterval); t.known && len(t.leftover) > 0 && (next.IsZero() || again.Before(next)) {
		return again
	}
	return next
}

// due schedules a scan of a pod; UID "" stands for all missing pods.
func (t *Tracker) due(uid string, now time.Time) {
	if p := t.pods[uid]; p != nil {
		p.next, p.scanOftenUntil, p.listed = now, now.Add(oftenTime), time.Time{}
		return
	}
	for _, p := range t.pods {
		if !p.seen {
			p.next, p.listed = now, time.Time{}
		}
	}
}

// wait returns true when a scan is due, and false when ctx has ended.
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

// watched returns the directories to watch and the UIDs of their pods; UID "" stands for all pods, if one is
// missing.
func (t *Tracker) watched() map[string]string {
	all := map[string]string{}
	missing := false
	for uid, p := range t.pods {
		for i, dir := range p.dirs {
			if i == 0 || !p.seen { // one directory is enough for a pod with a process
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

// watcher receives notifications of changes in directories.
type watcher struct {
	open   func() (*fsnotify.Watcher, error)
	notify *fsnotify.Watcher // nil if inotify is not available
	dirs   map[string]string // with the UID of their pod
	fresh  map[string]bool   // UIDs of directories that are watched since the last scan
}

// watch sets the watched directories. If it fails, the periodic scan remains.
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
			_ = w.notify.Remove(dir) // possibly removed with the directory
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

// takeFresh returns the UIDs of newly watched directories.
func (w *watcher) takeFresh() map[string]bool {
	fresh := w.fresh
	w.fresh = nil
	return fresh
}

// concerns returns the pod of a relevant event: a cgroup is created or removed, the first process enters or the
// last one leaves. Other files change all the time.
func (w *watcher) concerns(ev fsnotify.Event) (uid string, ok bool) {
	if ev.Has(fsnotify.Remove) {
		if uid, ok := w.dirs[ev.Name]; ok { // the directory itself was removed; the kernel no longer watches it
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

// events and errors return nil channels, which block forever, without a watcher.
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
