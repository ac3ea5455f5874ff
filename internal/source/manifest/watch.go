// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"beeline.io/beeline/internal/source"
)

// timing says when files are read again.
type timing struct {
	quiet  time.Duration // after the last of several changes,
	rest   time.Duration // or after this, if a file was written in place or removed: more may follow,
	atMost time.Duration // but no later than this after the first;
	resync time.Duration // and without a change, in case one was missed
	retry  time.Duration // wait longer by this before each further attempt of a read
}

var defaultTiming = timing{
	quiet:  2 * time.Millisecond,
	rest:   10 * time.Millisecond,
	atMost: 50 * time.Millisecond,
	resync: 30 * time.Second,
	retry:  5 * time.Millisecond,
}

// points are what has to be watched to hear of every change of the manifests.
type points struct {
	dirs []string // to watch
	// names in dirs that matter; in the folder of the manifests those of manifests do, too.
	names  map[string]bool
	folder string
}

// watchPoints finds them: the folder, and every place where a name on the way to
// it or to a file in it could come to mean something else. Editors and "mv"
// replace a file by renaming another one; a mounted ConfigMap replaces a
// symbolic link (..data) that all its files go through.
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
		des, _ := os.ReadDir(end) // what cannot be read, list reports
		for _, de := range des {
			if de.Type()&fs.ModeSymlink != 0 && isManifest(de.Name()) {
				follow(filepath.Join(end, de.Name()))
			}
		}
	}
	for dir := range dirs {
		p.dirs = append(p.dirs, dir)
	}
	// A folder above comes first, so that nothing is missed below it.
	slices.Sort(p.dirs)
	return p
}

// trail lists the names that decide where a path leads: each symbolic link on
// the way, and the last name or the first that does not exist. end is where it
// leads, free of links.
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
		case err == nil && links < 40: // as many as Linux follows (path_resolution(7))
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
	notify *fsnotify.Watcher // nil if there is none
	events chan fsnotify.Event
	errors chan error
	err    error // why changes are not heard of at once
}

// watch sets what is watched from now on. Where that fails, the periodic read
// remains, and it is tried again next time.
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
			_ = w.notify.Remove(dir) // gone with the folder, maybe
		}
	}
	w.points = p
	for _, dir := range p.dirs {
		// Also what is watched already: the name may mean another folder now.
		if err := w.notify.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.err = err
		}
	}
}

// problems warns if changes are not heard of at once.
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

// news says which files may have changed.
type news struct {
	all   bool
	names map[string]bool // of files in the folder
}

func (n news) of(name string) bool { return n.all || n.names[name] }

// wait returns when it is time to read again, with what was heard meanwhile, or
// when ctx has ended.
func (w *watcher) wait(ctx context.Context) news {
	resync := time.NewTimer(w.timing.resync)
	defer resync.Stop()
	var quiet, atMost <-chan time.Time
	var until time.Time // of quiet
	heard := news{all: w.err != nil, names: make(map[string]bool)}
	for {
		select {
		case <-ctx.Done():
			return heard
		case ev := <-w.events:
			if !w.points.matter(ev.Name) {
				continue
			}
			if w.points.names[ev.Name] || filepath.Dir(ev.Name) != w.points.folder {
				heard.all = true // links and folders: any file may be another one now
			}
			heard.names[filepath.Base(ev.Name)] = true
			until = later(until, time.Now().Add(w.pause(ev)))
		case <-w.errors: // the kernel's queue overflowed: anything may have changed
			heard.all = true
			until = later(until, time.Now().Add(w.timing.quiet))
		case <-quiet:
			return heard
		case <-atMost:
			return heard
		case <-resync.C:
			heard.all = true
			return heard
		}
		quiet = time.After(time.Until(until))
		if atMost == nil {
			atMost = time.After(w.timing.atMost)
		}
	}
}

// pause is how long no other change has to follow one.
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

// matter says whether a change of that name can change the manifests.
func (p points) matter(name string) bool {
	return p.names[name] || p.folder != "" && (name == p.folder || filepath.Dir(name) == p.folder && isManifest(filepath.Base(name)))
}

func (w *watcher) close() {
	if w.notify != nil {
		_ = w.notify.Close()
	}
}
