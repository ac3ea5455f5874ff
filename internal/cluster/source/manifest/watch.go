// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"beeline.io/beeline/internal/cluster/source"
)

// timing is when files are read again.
type timing struct {
	quiet  time.Duration // after the last of several changes,
	rest   time.Duration // or after this if a file was written in place or removed, because more changes may follow,
	atMost time.Duration // but no later than this after the first change;
	resync time.Duration // and without a change, in case one was missed
	retry  time.Duration // increase of the wait before each further attempt of a read
}

var defaultTiming = timing{
	quiet:  2 * time.Millisecond,
	rest:   10 * time.Millisecond,
	atMost: 50 * time.Millisecond,
	resync: 30 * time.Second,
	retry:  5 * time.Millisecond,
}

// points are what has to be watched to notice every change of the manifests.
type points struct {
	dirs []string // to watch
	// names are relevant names in dirs; in the manifests' directory, names of manifests are relevant too.
	names  map[string]bool
	folder string
}

// watchPoints returns the directory and every place where a name on the way to it, or to a file in it, can be
// replaced. Editors and "mv" replace a file by renaming another one; a mounted ConfigMap replaces a symbolic
// link (..data) on the way to all its files.
func watchPoints(path string) points {
	p := points{names: make(map[string]bool)}
	dirs := make(map[string]bool)
	follow := func(path string) string {
		names, end := trail(path)
		for _, name := range names {
			p.names[name] = true
			dirs[filepath.Dir(name)] = true
		}
		return end
	}
	end := follow(path)
	if fi, err := os.Stat(end); err == nil && fi.IsDir() {
		p.folder = end
		dirs[end] = true
		des, _ := os.ReadDir(end) // list reports unreadable directories
		for _, de := range des {
			if de.Type()&fs.ModeSymlink != 0 && isManifest(de.Name()) {
				follow(filepath.Join(end, de.Name()))
			}
		}
	}
	// Parents first, so that no change below them is missed.
	p.dirs = slices.Sorted(maps.Keys(dirs))
	return p
}

// trail returns the names that determine where a path leads: each symbolic link on the way, and the last name
// or the first that does not exist. end is the resolved path.
func trail(path string) (names []string, end string) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, path
	}
	rest, end := strings.Split(abs, "/"), "/"
	for links := 0; len(rest) > 0; {
		name := filepath.Join(end, rest[0])
		rest = rest[1:]
		to, err := os.Readlink(name)
		switch {
		case err == nil && links < 40: // the limit of Linux (path_resolution(7))
			links++
			names = append(names, name)
			if filepath.IsAbs(to) {
				end = "/"
			}
			rest = append(strings.Split(to, "/"), rest...)
			continue
		case err == nil, errors.Is(err, fs.ErrNotExist):
			return append(names, name), name
		}
		end = name
	}
	return append(names, end), end
}

// watcher wakes up when files change.
type watcher struct {
	timing timing
	open   func() (*fsnotify.Watcher, error)
	points points
	notify *fsnotify.Watcher // nil if inotify is not available
	events chan fsnotify.Event
	errors chan error
	err    error // why changes are not noticed at once
}

// watch sets what is watched. If it fails, the periodic read remains, and the next call tries again.
func (w *watcher) watch(p points) {
	w.err = nil
	if w.notify == nil {
		if w.notify, w.err = w.open(); w.err != nil {
			w.notify = nil
			return
		}
		w.events, w.errors = w.notify.Events, w.notify.Errors
	}
	for _, dir := range w.points.dirs {
		if !slices.Contains(p.dirs, dir) {
			_ = w.notify.Remove(dir) // possibly removed with the directory
		}
	}
	w.points = p
	for _, dir := range p.dirs {
		// Add directories that are already watched again: the name may now refer to another directory.
		if err := w.notify.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.err = err
		}
	}
}

// problems returns a warning if changes are not noticed at once.
func (w *watcher) problems(path string) source.Problems {
	if w.err == nil {
		return nil
	}
	return source.Problems{{
		File: path, Warning: true,
		Reason: fmt.Sprintf("cannot be watched (%v): changes are noticed only every %s; "+
			"raise the sysctls fs.inotify.max_user_instances and fs.inotify.max_user_watches", w.err, w.timing.resync),
	}}
}

// changes are the files that may have changed.
type changes struct {
	all   bool
	names map[string]bool // names of files in the directory
}

func (n changes) of(name string) bool { return n.all || n.names[name] }

// wait returns when a read is due, with the changes noticed meanwhile, or when ctx ends.
func (w *watcher) wait(ctx context.Context) changes {
	resync := time.NewTimer(w.timing.resync)
	defer resync.Stop()
	var quiet, atMost <-chan time.Time
	var until time.Time // end of the quiet period
	changed := changes{all: w.err != nil, names: make(map[string]bool)}
	for {
		select {
		case <-ctx.Done():
			return changed
		case ev := <-w.events:
			if !w.points.matter(ev.Name) {
				continue
			}
			if w.points.names[ev.Name] || filepath.Dir(ev.Name) != w.points.folder {
				changed.all = true // links and directories: any file may have changed
			}
			changed.names[filepath.Base(ev.Name)] = true
			until = later(until, time.Now().Add(w.pause(ev)))
		case <-w.errors: // the kernel's queue overflowed: anything may have changed
			changed.all = true
			until = later(until, time.Now().Add(w.timing.quiet))
		case <-quiet:
			return changed
		case <-atMost:
			return changed
		case <-resync.C:
			changed.all = true
			return changed
		}
		quiet = time.After(time.Until(until))
		if atMost == nil {
			atMost = time.After(w.timing.atMost)
		}
	}
}

// pause returns how long to wait for more changes after an event.
func (w *watcher) pause(ev fsnotify.Event) time.Duration {
	if ev.Has(fsnotify.Write) || ev.Has(fsnotify.Remove) {
		return max(w.timing.quiet, w.timing.rest)
	}
	return w.timing.quiet
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// matter reports whether a change of this name can change the manifests.
func (p points) matter(name string) bool {
	return p.names[name] || p.folder != "" && (name == p.folder || filepath.Dir(name) == p.folder && isManifest(filepath.Base(name)))
}

func (w *watcher) close() {
	if w.notify != nil {
		_ = w.notify.Close()
	}
}
