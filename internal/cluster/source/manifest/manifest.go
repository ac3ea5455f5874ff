// SPDX-License-Identifier: Apache-2.0

// Package manifest is the source that reads Kubernetes YAML and JSON from a file or a directory, and follows
// its changes.
//
// The directory is one state. If any part of it is invalid, none of it takes effect and the last valid state
// stays in use; every problem is reported with file, line, object and reason. When everything is valid again,
// the difference is one event. docs/operate/manifests.md is the user documentation.
//
// A read lists and reads files (look.go, read.go), splits them into documents (document.go, json.go),
// decodes these strictly (decode.go), checks them (check.go, checkservice.go), converts them (object.go), and
// joins the files (join.go). watch.go decides when to read again, and which files may have changed; sequence.go
// computes events from the changes.
package manifest

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/fsnotify/fsnotify"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source"
)

// Source is a file or a directory of manifests.
type Source struct {
	path   string
	limits limits
	timing timing
	notify func() (*fsnotify.Watcher, error)
	// whileReading is a test hook, called after files are read and before they are listed again.
	whileReading func()

	mu sync.Mutex
	// files holds the last read of each file by name, so that a file with the same content is not decoded
	// again and its objects keep their pointers.
	files map[string]*file
	// folder is the inode of the directory at the last complete read; 0 if that read failed, or for
	// a single file. size is the total size of the files.
	folder uint64
	size   int64
}

var _ source.Source = (*Source)(nil)

// State is the content of a directory without errors.
type State struct {
	// Objects are sorted by their Ref, each once.
	Objects []service.Object
	// Warnings name what was skipped or is probably a mistake.
	Warnings source.Problems
}

// New returns a source of the manifests in path: one file, or all *.yaml, *.yml and *.json files in a
// directory, but not in its subdirectories. It reads nothing yet.
func New(path string) *Source {
	return &Source{path: path, limits: defaultLimits, timing: defaultTiming, notify: fsnotify.NewWatcher, whileReading: func() {}}
}

// IgnoreAnnotations makes the source skip annotations beeline.io/... of Services, EndpointSlices and Pods, right or
// wrong. It is called before anything is read.
func (s *Source) IgnoreAnnotations() { s.limits.noAnnotations = true }

// Load reads the manifests once. The error is of type source.Problems and holds all problems,
// including warnings.
func (s *Source) Load() (State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := reading{problems: s.readAll(changes{all: true})}
	if r.problems == nil {
		r = s.join()
	}
	if r.problems.Errors() > 0 {
		return State{}, r.problems
	}
	objects := slices.SortedFunc(maps.Values(r.objects), func(a, b service.Object) int { return a.Ref().Compare(b.Ref()) })
	return State{Warnings: r.problems, Objects: objects}, nil
}

// Run sends the manifests and then each change to them, until ctx ends; it always returns nil. The first event
// is sent at once; if the manifests are invalid, it has Problems and Synced is false.
func (s *Source) Run(ctx context.Context, events chan<- source.Event) error {
	w := &watcher{timing: s.timing, open: s.notify}
	defer w.close()
	sent := newSequence()
	changed := changes{all: true}
	for {
		if ev, ok := s.next(w, changed, sent); ok {
			select {
			case events <- ev:
			case <-ctx.Done():
				return nil
			}
		}
		if changed = w.wait(ctx); ctx.Err() != nil {
			return nil
		}
	}
}

// next reads the files that may have changed, and returns the resulting event, or false if there is none.
func (s *Source) next(w *watcher, changed changes, sent *sequence) (source.Event, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readSome(changed) {
		return sent.next(s, changed.names, nil)
	}
	// Watch first, then read, so that no later change is missed.
	w.watch(watchPoints(s.path))
	failed := s.readAll(changed)
	sent.watch = w.problems(s.path)
	return sent.next(s, nil, failed)
}
