// SPDX-License-Identifier: Apache-2.0

package podcgroup

import (
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

func (f *Follower) interval(p *followed, now time.Time) time.Duration {
	switch {
	case p.seen && f.watchErr == nil:
		return foundInterval
	case p.seen || len(p.dirs) == 0:
		return missingInterval
	case now.Before(p.scanOftenUntil):
		return oftenInterval
	}
	return emptyInterval
}

// watcher receives notifications of changes in directories.
type watcher struct {
	open   func() (*fsnotify.Watcher, error)
	notify *fsnotify.Watcher // nil if inotify is not available
	dirs   map[string]bool
	fresh  []string // directories that are watched since the last scan
}

// watch sets the watched directories. If it fails, the periodic scan remains.
func (w *watcher) watch(dirs []string) (err error) {
	if w.notify == nil {
		if len(dirs) == 0 {
			return nil
		}
		if w.notify, err = w.open(); err != nil {
			w.notify = nil
			return err
		}
	}
	wanted := map[string]bool{}
	for _, dir := range dirs {
		wanted[dir] = true
	}
	for dir := range w.dirs {
		if !wanted[dir] {
			_ = w.notify.Remove(dir) // possibly removed with the directory
			delete(w.dirs, dir)
		}
	}
	for dir := range wanted {
		if w.dirs[dir] {
			continue
		}
		if e := w.notify.Add(dir); ignoreGone(e) != nil {
			err = e
		} else if e == nil {
			w.dirs[dir] = true
			w.fresh = append(w.fresh, dir)
		}
	}
	return err
}

// takeFresh returns the newly watched directories.
func (w *watcher) takeFresh() []string {
	fresh := w.fresh
	w.fresh = nil
	return fresh
}

// concerns returns the directory of a relevant event: a cgroup is created or removed, the first process enters or the
// last one leaves. Other files change all the time.
func (w *watcher) concerns(ev fsnotify.Event) (dir string, ok bool) {
	if ev.Has(fsnotify.Remove) && w.dirs[ev.Name] { // the directory itself was removed; the kernel no longer watches it
		delete(w.dirs, ev.Name)
		return ev.Name, true
	}
	if !ev.Has(fsnotify.Create) && !ev.Has(fsnotify.Remove) && filepath.Base(ev.Name) != "cgroup.events" {
		return "", false
	}
	dir = filepath.Dir(ev.Name)
	return dir, w.dirs[dir]
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
