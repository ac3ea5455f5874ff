// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"reflect"
	"slices"

	"beeline.io/beeline/internal/service"
	"beeline.io/beeline/internal/source"
)

// sequence makes events out of what is read. It remembers the last good state, which is
// that of the last event, in such a way that a change costs what changed, and not what
// there is.
type sequence struct {
	started, synced bool
	problems        source.Problems
	// watch is what is wrong with the notifications.
	watch source.Problems

	// files are those of the last good state, and warned those of them with warnings;
	// objects and allocated are what is in them.
	files, warned map[string]*file
	objects       map[service.Ref]struct{}
	allocated     map[allocation]struct{}
	// behind: files have been read that are not in that state, for something was bad.
	behind bool
}

func newSequence() *sequence {
	return &sequence{
		files: map[string]*file{}, warned: map[string]*file{},
		objects: map[service.Ref]struct{}{}, allocated: map[allocation]struct{}{},
	}
}

// next returns the event that the files of a source mean, or false if it says nothing new.
// Only those of these names may have changed since the last call, any if names is nil.
// failed says why they could not be read.
func (q *sequence) next(s *Source, names map[string]bool, failed source.Problems) (source.Event, bool) {
	problems := failed
	var changes []service.Change
	good := false
	if failed == nil {
		if changes, good = q.advance(s.files, names); good {
			problems = s.inOrder(q.warnings())
		} else {
			problems = s.join().problems
		}
	}
	q.behind = !good
	problems = append(problems, q.watch...)
	news := !q.started || !slices.Equal(q.problems, problems) || good && !q.synced || len(changes) > 0
	q.started, q.synced, q.problems = true, q.synced || good, problems
	return source.Event{Changes: changes, Synced: q.synced, Problems: slices.Clone(problems)}, news
}

// advance takes the files over as the good state, and returns what leads to it. If one of
// them is bad, or if two of them do not go together, it is false and changes nothing.
func (q *sequence) advance(files map[string]*file, names map[string]bool) (changes []service.Change, ok bool) {
	gone, come := newContents(), newContents()
	different := q.different(files, names)
	for name := range different {
		if old := q.files[name]; old != nil {
			gone.add(old)
		}
	}
	for _, f := range different {
		if f != nil && (f.problems.Errors() > 0 || !come.add(f)) {
			return nil, false
		}
	}
	if stays(come.objects, q.objects, gone.objects) || stays(come.allocated, q.allocated, gone.allocated) {
		return nil, false
	}
	for name, f := range different {
		delete(q.files, name)
		delete(q.warned, name)
		if f != nil {
			q.files[name] = f
		}
		if f != nil && len(f.problems) > 0 {
			q.warned[name] = f
		}
	}
	replace(q.objects, gone.objects, come.objects)
	replace(q.allocated, gone.allocated, come.allocated)
	return diff(gone.objects, come.objects), true
}

// different are the files that are not those of the good state, nil for one that is gone.
func (q *sequence) different(files map[string]*file, names map[string]bool) map[string]*file {
	all := map[string]*file{}
	look := func(name string) {
		if f := files[name]; f != q.files[name] {
			all[name] = f
		}
	}
	if names != nil && !q.behind {
		for name := range names {
			look(name)
		}
		return all
	}
	for name := range files {
		look(name)
	}
	for name := range q.files {
		look(name)
	}
	return all
}

// warnings are those of all files of the good state.
func (q *sequence) warnings() (all source.Problems) {
	for _, f := range q.warned {
		all = append(all, f.problems...)
	}
	return all
}

// contents are what some files hold together.
type contents struct {
	objects   map[service.Ref]service.Object
	allocated map[allocation]service.Ref
}

func newContents() contents {
	return contents{map[service.Ref]service.Object{}, map[allocation]service.Ref{}}
}

// add is false if there is something in the file already that only one can have.
func (c contents) add(f *file) bool {
	for _, o := range f.objects {
		ref := o.object.Ref()
		if _, taken := c.objects[ref]; taken {
			return false
		}
		c.objects[ref] = o.object
		s, ok := o.object.(*service.Service)
		if !ok {
			continue
		}
		for _, a := range allocated(s) {
			if _, taken := c.allocated[a]; taken {
				return false
			}
			c.allocated[a] = ref
		}
	}
	return true
}

// stays says whether something that comes is there already, and does not go.
func stays[K comparable, V any](come map[K]V, there map[K]struct{}, gone map[K]V) bool {
	for k := range come {
		_, is := there[k]
		if _, goes := gone[k]; is && !goes {
			return true
		}
	}
	return false
}

func replace[K comparable, V any](there map[K]struct{}, gone, come map[K]V) {
	for k := range gone {
		delete(there, k)
	}
	for k := range come {
		there[k] = struct{}{}
	}
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
