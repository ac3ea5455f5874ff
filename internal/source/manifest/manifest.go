// SPDX-License-Identifier: Apache-2.0

// Package manifest is the source that reads ordinary Kubernetes YAML and JSON
// from a file or a folder, and follows its changes.
//
// The folder is one state. If anything in it is bad, nothing of it counts and
// the last good state stays in force, while every problem is reported with
// file, line, object and reason. Once all is good again, the difference is one
// event. docs/manifests.md tells users the same.
//
// A read goes: list and read files (read.go), split them into documents
// (document.go, json.go), decode these strictly (decode.go), check them
// (check.go, checkservice.go) and convert them (object.go), and join the files
// (manifest.go). Around that, watch.go says when to read again.
package manifest

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

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

	mu sync.Mutex
	// files holds the last read of each file by name, so that a file with the
	// same content is not decoded again and its objects stay the same pointers.
	files map[string]*file
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
	return &Source{path: path, limits: defaultLimits, timing: defaultTiming, notify: fsnotify.NewWatcher}
}

// Load reads the manifests once. The error is of type source.Problems and holds
// all that is wrong, warnings included.
func (s *Source) Load() (State, error) {
	r := s.read(news{all: true})
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
	var sent sequence
	heard := news{all: true}
	for {
		// Watch first, then read: what changes from here on is heard of.
		w.watch(watchPoints(s.path))
		r := s.read(heard)
		r.problems = append(r.problems, w.problems(s.path)...)
		if ev, ok := sent.next(r); ok {
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

// reading is what one read of all files gave.
type reading struct {
	// objects is meant only if no problem is an error.
	objects  map[service.Ref]service.Object
	problems source.Problems
}

// sequence makes events out of readings: it remembers what was sent.
type sequence struct {
	started, synced bool
	objects         map[service.Ref]service.Object
	problems        source.Problems
}

// next returns the event that r means, or false if it says nothing new.
func (q *sequence) next(r reading) (source.Event, bool) {
	var changes []service.Change
	news := !q.started || !slices.Equal(q.problems, r.problems)
	if r.problems.Errors() == 0 {
		changes = diff(q.objects, r.objects)
		news = news || !q.synced || len(changes) > 0
		q.synced, q.objects = true, r.objects
	}
	q.started, q.problems = true, r.problems
	return source.Event{Changes: changes, Synced: q.synced, Problems: slices.Clone(r.problems)}, news
}

// diff lists what leads from one state to the other, by value.
func diff(from, to map[service.Ref]service.Object) []service.Change {
	var changes []service.Change
	for ref, o := range to {
		// The pointers are equal if the file is unchanged: no need to look inside.
		if old, ok := from[ref]; !ok || old != o && !reflect.DeepEqual(old, o) {
			changes = append(changes, service.Change{Ref: ref, Object: o})
		}
	}
	for ref := range from {
		if _, ok := to[ref]; !ok {
			changes = append(changes, service.Change{Ref: ref})
		}
	}
	slices.SortFunc(changes, func(a, b service.Change) int { return a.Ref.Compare(b.Ref) })
	return changes
}

// A read looks for a moment in which no file changes.
const (
	attempts      = 8 // if files change in place or many at once, which may be seen half done
	stillAttempts = 3 // if they are only added, replaced and removed
)

// read reads all files. Files that change while it reads would mix two states,
// so it looks at them before and after, and reads those that did again. Where
// whole files come and go all the time it takes what it has: each file is one
// that was there, the next read follows at once, and to stand still would be
// worse.
func (s *Source) read(heard news) reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, err := list(s.path)
	for i := 0; i < attempts; i++ {
		if err != nil {
			return reading{problems: source.Problems{{File: s.path, Reason: describeListError(err)}}}
		}
		if size := totalSize(before); size > s.limits.folder {
			return reading{problems: source.Problems{{
				File:   s.path,
				Reason: fmt.Sprintf("files of %d bytes together; at most %d are read: remove what is not needed", size, s.limits.folder),
			}}}
		}
		files := s.readEntries(before, heard)
		heard = news{} // what looks the same from here on is the same
		var after []entry
		after, err = list(s.path)
		still := err == nil && slices.Equal(before, after)
		oneByOne := still || replacedOneByOne(before, after)
		if still || err == nil && i+1 >= stillAttempts && oneByOne {
			r := join(files)
			r.problems = truncate(r.problems, s.limits.report, s.path)
			return r
		}
		if !oneByOne {
			time.Sleep(time.Duration(i+1) * s.timing.retry)
			after, err = list(s.path)
		}
		before = after
	}
	return reading{problems: source.Problems{{
		File: s.path,
		Reason: fmt.Sprintf("changed each of %d times while it was being read; "+
			"write files under a hidden name and rename them when they are complete", attempts),
	}}}
}

// replacedOneByOne says whether all that differs between two lists is whole
// files that came, went or took another's place, each by itself. It is not so
// where a file was written to, and where a link or the folder is another one now
// and changes many files at once. The lists are sorted by name.
func replacedOneByOne(before, after []entry) bool {
	if len(before) > 0 && len(after) > 0 && before[0].folder != after[0].folder {
		return false
	}
	old := map[string]entry{}
	for _, e := range before {
		old[e.name] = e
	}
	for _, e := range after {
		was, known := old[e.name]
		delete(old, e.name)
		if known && was == e {
			continue
		}
		if e.linked || known && (was.linked || was.stat.ino == e.stat.ino) {
			return false
		}
	}
	for _, e := range old {
		if e.linked {
			return false
		}
	}
	return true
}

// readEntries reads the files listed, in the order of their names.
func (s *Source) readEntries(entries []entry, heard news) []*file {
	files := make([]*file, len(entries))
	parallel(len(entries), func(i int) {
		files[i] = readEntry(entries[i], s.files[entries[i].name], heard, s.limits)
	})
	s.files = make(map[string]*file, len(files))
	for _, f := range files {
		s.files[f.name] = f
	}
	return files
}

// join puts the files together. An object that two of them have is an error,
// because nothing says which is meant.
func join(files []*file) reading {
	type place struct {
		file string
		line int
	}
	r := reading{objects: make(map[service.Ref]service.Object)}
	first := make(map[service.Ref]place)
	for _, f := range files {
		r.problems = append(r.problems, f.problems...)
		for _, o := range f.objects {
			ref := o.object.Ref()
			if at, ok := first[ref]; ok {
				r.problems = append(r.problems, source.Problem{
					File: f.name, Line: o.line, Object: ref.String(),
					Reason: fmt.Sprintf("is in %s:%d already; remove one of the two", at.file, at.line),
				})
				continue
			}
			first[ref] = place{f.name, o.line}
			r.objects[ref] = o.object
		}
	}
	r.problems = append(r.problems, sharedAddresses(files)...)
	slices.SortStableFunc(r.problems, comparePlace)
	return r
}

// allocation is what an API server gives to one Service only.
type allocation struct{ field, value string }

// allocated lists each allocation of a Service once.
func allocated(s *service.Service) []allocation {
	var all []allocation
	for _, ip := range s.ClusterIPs {
		if ip != "" && ip != "None" {
			all = append(all, allocation{"spec.clusterIPs", ip})
		}
	}
	for _, p := range s.Ports {
		if c := (allocation{"spec.ports[].nodePort", fmt.Sprintf("%d/%s", p.NodePort, p.Protocol)}); p.NodePort != 0 && !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all
}

// sharedAddresses finds ClusterIPs and NodePorts that two Services have, which
// an API server would not allocate twice. Nothing says which Service is meant,
// and one that works must not lose them to one that is new.
func sharedAddresses(files []*file) (problems source.Problems) {
	type holder struct {
		ref   service.Ref
		place string
	}
	first := map[allocation]holder{}
	for _, f := range files {
		for _, o := range f.objects {
			s, ok := o.object.(*service.Service)
			if !ok {
				continue
			}
			for _, c := range allocated(s) {
				other, taken := first[c]
				if !taken {
					first[c] = holder{s.Ref(), fmt.Sprintf("%s:%d", f.name, o.line)}
				} else if other.ref != s.Ref() { // an object given twice is said to be that
					problems = append(problems, source.Problem{File: f.name, Line: o.line, Object: s.Ref().String(),
						Reason: fmt.Sprintf("%s: %s belongs to %s (%s) already; choose another", c.field, c.value, other.ref, other.place)})
				}
			}
		}
	}
	return problems
}
