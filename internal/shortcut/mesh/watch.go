// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// startInterval is the time between looks at a pod whose cgroup has no process yet: a process that enters a
	// cgroup causes no notification. The first one is the sandbox's, some time before the application's.
	startInterval = 10 * time.Millisecond
	// startTime is how long it is looked at so often. After that Repair looks once a second.
	startTime = 30 * time.Second
)

// Run serves pods as they start, until ctx ends. It always returns nil. Without inotify pods are found by Repair.
func (s *Shortcut) Run(ctx context.Context) error {
	w := &watcher{watched: map[string]bool{}}
	defer w.close()
	hurry := time.Now().Add(startTime)
	for {
		if w.watch(s.parents()) {
			s.serveNew() // what appeared before the watch
		}
		var clock <-chan time.Time
		if s.starting() && time.Now().Before(hurry) {
			clock = time.After(startInterval)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
			hurry = time.Now().Add(startTime)
		case <-s.moved:
			s.followDevices()
			continue
		case <-clock:
		case e := <-w.events():
			if !e.Has(fsnotify.Create) {
				continue
			}
			hurry = time.Now().Add(startTime)
		}
		s.serveNew()
	}
}

// starting reports whether a pod has a cgroup and no process yet.
func (s *Shortcut) starting() bool {
	for _, p := range s.Pods() {
		if p.Cgroup != 0 && p.Namespace == 0 {
			return true
		}
	}
	return false
}

// serveNew serves pods that have had no process yet. What fails is tried again by Repair, not as often as this.
func (s *Shortcut) serveNew() {
	s.work.Lock()
	defer s.work.Unlock()
	if s.started && s.repair(true, false) {
		s.removeOthers()
	}
}

// parents returns the directories in which cgroups of pods will appear.
func (s *Shortcut) parents() (all []string) {
	kubelets := false
	for _, p := range s.Pods() {
		switch {
		case p.Cgroup != 0:
		case p.UID == "":
			all = append(all, filepath.Dir(p.Directory))
		default:
			kubelets = true
		}
	}
	if kubelets {
		s.work.Lock()
		defer s.work.Unlock()
		all = append(all, s.config.Finder.Groups()...)
	}
	return all
}

// watcher receives notifications of new directories.
type watcher struct {
	notify  *fsnotify.Watcher // nil if inotify is not available
	watched map[string]bool
}

// watch sets the watched directories, and reports whether one is new.
func (w *watcher) watch(directories []string) (fresh bool) {
	if w.notify == nil && len(directories) > 0 {
		w.notify, _ = fsnotify.NewWatcher()
	}
	if w.notify == nil {
		return false
	}
	wanted := map[string]bool{}
	for _, directory := range directories {
		wanted[directory] = true
		if !w.watched[directory] && w.notify.Add(directory) == nil {
			w.watched[directory], fresh = true, true
		}
	}
	for directory := range w.watched {
		if !wanted[directory] {
			_ = w.notify.Remove(directory) // possibly gone
			delete(w.watched, directory)
		}
	}
	return fresh
}

// events returns a nil channel, which blocks forever, without inotify.
func (w *watcher) events() <-chan fsnotify.Event {
	if w.notify == nil {
		return nil
	}
	return w.notify.Events
}

func (w *watcher) close() {
	if w.notify != nil {
		_ = w.notify.Close()
	}
}
