// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"reflect"
	"slices"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source"
)

// sequence computes events from reads. It keeps the last valid state, that of the last event, in a form in
// which the cost of a change depends on the size of the change, not of the state.
type sequence struct {
	started, synced bool
	problems        source.Problems
	// watch is the problem of the notifications, if any.
	watch source.Problems

	// files are those of the last valid state, and warned those of them with warnings; objects and
	// allocated are their content.
	files, warned map[string]*file
	objects       map[service.Ref]struct{}
	allocated     map[allocation]struct{}
	// behind means that files were read that are not in that state, because something was invalid.
	behind bool
}

func newSequence() *sequence {
	return &sequence{
		files: map[string]*file{}, warned: map[string]*file{},
		objects: map[service.Ref]struct{}{}, allocated: map[allocation]struct{}{},
	}
}

// next returns the event for the current files of a source, or false if nothing changed. If names is not nil,
// only those files may have changed since the last call. failed is why the files could not be read.
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
	changed := !q.started || !slices.Equal(q.problems, problems) || good && !q.synced || len(changes) > 0
	q.started, q.synced, q.problems = true, q.synced || good, problems
	return source.Event{Changes: changes, Synced: q.synced, Problems: slices.Clone(problems)}, changed
}

// advance makes the files the valid state, and returns the changes to it. If a file is invalid, or
// two files conflict, it returns false and changes nothing.
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

// different returns the files that differ from the valid state's; nil for a removed one.
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

// warnings returns the warnings of all files of the valid state.
func (q *sequence) warnings() (all source.Problems) {
	for _, f := range q.warned {
		all = append(all, f.problems...)
	}
	return all
}

// contents is the joined content of some files.
type contents struct {
	objects   map[service.Ref]service.Object
	allocated map[allocation]service.Ref
}

func newContents() contents {
	return contents{map[service.Ref]service.Object{}, map[allocation]service.Ref{}}
}

// add returns false if the file conflicts with the content: an object or allocation is already there.
func (c contents) add(f *file) bool {
	for _, o := range f.objects {
		ref := o.object.Ref()
		if _, taken := c.objects[ref]; taken {
			return false
		}
		c.objects[ref] = o.object
		for _, a := range allocated(o.object) {
			if _, taken := c.allocated[a]; taken {
				return false
			}
			c.allocated[a] = ref
		}
	}
	return true
}

// stays reports whether something to be added is already there and is not being removed.
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

// diff returns the changes from one state to another, by value.
func diff(from, to map[service.Ref]service.Object) []service.Change {
	var changes []service.Change
	for ref, o := range to {
		// The pointers are equal if the file is unchanged, so there is no need to compare values.
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
