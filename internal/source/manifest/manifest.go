// SPDX-License-Identifier: Apache-2.0

// Package manifest is the source that reads ordinary Kubernetes YAML and JSON
// from a file or a folder, and follows its changes.
//
// The folder is one state. If anything in it is bad, nothing of it counts and
// the last good state stays in force, while every problem is reported with
// file, line, object and reason. Once all is good again, the difference is one
// event. docs/manifests.md tells users the same.
//
// A read goes: list and read files (look.go, read.go), split them into documents
// (document.go, plain.go, json.go), decode these strictly (decode.go), check them
// (check.go, checkservice.go) and convert them (object.go), and join the files
// (join.go). Around that, watch.go says when to read again, and which files may
// have changed; sequence.go makes events of what did.
package manifest

import (
	"context"
	"slices"
	"sync"

	"github.com/fsnotify/fsnotify"

	"beeline.io/beeline/internal/service"
	"beeline.io/beeline/internal/source"
)

// Source is a file or a folder of manifests.
type Source struct {
	path   string
	limits limits
	timing timing
	notify func() (*fsnotify.Watcher, error)
	// whileReading is called after files have been read and before they are looked at again: by
	// tests, in whose files something changes just then.
	whileReading func()

	mu sync.Mutex
	// files holds the last read of each file by name, so that a file with the
	// same content is not decoded again and its objects stay the same pointers.
	files map[string]*file
	// folder is where all of them were found by the last look at all, its inode; 0: that
	// look failed, or it is one file. size is that of the files together.
	folder uint64
	size   int64
}

var _ source.Source = (*Source)(nil)

// State is the content of a folder without errors.
type State struct {
	// Objects are sorted by their Ref, each once.
	Objects []service.Object
	// Warnings name what was left out, or looks like an oversight.
	Warnings source.Problems
}

// New returns a source of the manifests in path: one file, or all *.yaml, *.yml
// and *.json in a folder, not in the folders below it. Nothing is read yet.
func New(path string) *Source {
	return &Source{path: path, limits: defaultLimits, timing: defaultTiming, notify: fsnotify.NewWatcher, whileReading: func() {}}
}

// Load reads the manifests once. The error is of type source.Problems and holds
// all that is wrong, warnings included.
func (s *Source) Load() (State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := reading{problems: s.readAll(news{all: true})}
	if r.problems == nil {
		r = s.join()
	}
	if r.problems.Errors() > 0 {
		return State{}, r.problems
	}
	st := State{Warnings: r.problems, Objects: make([]service.Object, 0, len(r.objects))}
	for _, o := range r.objects {
		st.Objects = append(st.Objects, o)
	}
	slices.SortFunc(st.Objects, func(a, b service.Object) int { return a.Ref().Compare(b.Ref()) })
	return st, nil
}

// Run sends the manifests and then each change of them, until ctx ends; it
// always returns nil. The first event comes at once, also if the manifests are
// bad: then with Problems and without Synced.
func (s *Source) Run(ctx context.Context, events chan<- source.Event) error {
	w := &watcher{timing: s.timing, open: s.notify}
	defer w.close()
	sent := newSequence()
	heard := news{all: true}
	for {
		if ev, ok := s.next(w, heard, sent); ok {
			select {
			case events <- ev:
			case <-ctx.Done():
				return nil
			}
		}
		if heard = w.wait(ctx); ctx.Err() != nil {
			return nil
		}
	}
}

// next reads what may have changed, and returns the event that this means, or false if it
// means none.
func (s *Source) next(w *watcher, heard news, sent *sequence) (source.Event, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readSome(heard) {
		return sent.next(s, heard.names, nil)
	}
	// Watch first, then read: what changes from here on is heard of.
	w.watch(watchPoints(s.path))
	failed := s.readAll(heard)
	sent.watch = w.problems(s.path)
	return sent.next(s, nil, failed)
}
