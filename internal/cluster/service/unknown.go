// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/plural"
	"beeline.io/beeline/internal/util/suggest"
)

// annotationPrefix is that of all annotations that the rules use.
const annotationPrefix = "beeline.io/"

// annotationsOf are the annotations that objects of a kind can have.
var annotationsOf = map[Kind][]string{
	KindService:       slices.Concat([]string{AnnotationAlgorithm, AnnotationDSR, AnnotationDSRHybrid, AnnotationStateless}, checkAnnotations),
	KindEndpointSlice: {AnnotationWeight},
	KindPod:           {AnnotationSocketShortcut},
	KindNamespace:     {AnnotationSocketShortcut},
	KindRuntimeClass:  {AnnotationSocketShortcut},
}

// ownNames are the names of all annotations, without their prefix.
var ownNames = func() (all []string) {
	for _, names := range annotationsOf {
		for _, name := range names {
			all = append(all, strings.TrimPrefix(name, annotationPrefix))
		}
	}
	return all
}()

// meantAnnotation returns the annotation that one with a prefix like annotationPrefix is probably meant to be, or "".
// Prefix and name must both be near: the annotations of others have any prefixes, and any names.
func meantAnnotation(annotation string) string {
	prefix, name, ok := strings.Cut(annotation, "/")
	own := strings.TrimSuffix(annotationPrefix, "/")
	word, _, _ := strings.Cut(own, ".")
	if !ok || prefix == own || prefix != word && !strings.HasSuffix(prefix, "."+own) && suggest.Nearest(prefix, []string{own}) == "" {
		return ""
	}
	if meant := suggest.Nearest(name, ownNames); meant != "" {
		return annotationPrefix + meant
	}
	return ""
}

// unknownAnnotations returns those beeline.io/... that objects of this kind do not have, and those with a misspelled
// prefix, sorted. Of a Service ParseHealthCheck reports its own.
func unknownAnnotations(kind Kind, annotations map[string]string) (all []AnnotationError) {
	for name := range annotations {
		if meant := meantAnnotation(name); meant != "" {
			all = append(all, AnnotationError{name, whyMisspelled(kind, meant)})
			continue
		}
		if !strings.HasPrefix(name, annotationPrefix) || slices.Contains(annotationsOf[kind], name) || kind == KindService && isOfHealthCheck(name) {
			continue
		}
		all = append(all, AnnotationError{name, whyUnknown(kind, name)})
	}
	slices.SortFunc(all, func(a, b AnnotationError) int { return strings.Compare(a.Annotation, b.Annotation) })
	return all
}

// whyMisspelled says which annotation is meant, and whether objects of this kind have it.
func whyMisspelled(kind Kind, meant string) string {
	if slices.Contains(annotationsOf[kind], meant) {
		return fmt.Sprintf("there is no such annotation, did you mean %q?", meant)
	}
	return fmt.Sprintf("there is no such annotation, did you mean %q? But %s", meant, whyUnknown(kind, meant))
}

func whyUnknown(kind Kind, name string) string {
	var of []string
	for other, known := range annotationsOf {
		if slices.Contains(known, name) {
			of = append(of, string(other))
		}
	}
	if len(of) > 0 {
		slices.Sort(of)
		return fmt.Sprintf("objects of kind %s do not have it: annotate the %s instead", kind, strings.Join(of, " or the "))
	}
	return "there is no such annotation" + cmp.Or(suggest.DidYouMean(name, annotationsOf[kind]), ": remove it")
}

// UnknownAnnotations holds the objects with annotations beeline.io/... that have no meaning. Its state depends only on
// the remaining objects, not on their order. It is not safe for concurrent use.
type UnknownAnnotations struct {
	objects map[Ref][]AnnotationError
}

// NewUnknownAnnotations returns an empty state.
func NewUnknownAnnotations() *UnknownAnnotations {
	return &UnknownAnnotations{map[Ref][]AnnotationError{}}
}

// Apply reports whether the state has changed.
func (u *UnknownAnnotations) Apply(changes []Change) (touched bool) {
	for _, c := range changes {
		now := unknownOf(c.Object)
		if slices.Equal(now, u.objects[c.Ref]) {
			continue
		}
		touched = true
		if u.objects[c.Ref] = now; now == nil {
			delete(u.objects, c.Ref)
		}
	}
	return touched
}

func unknownOf(object Object) []AnnotationError {
	switch o := object.(type) {
	case *Service:
		return o.Unknown
	case *EndpointSlice:
		return o.Unknown
	case *Node:
		return o.Unknown
	case *Pod:
		return o.Unknown
	case *Namespace:
		return o.Unknown
	case *RuntimeClass:
		return o.Unknown
	}
	return nil // removed, or a ServiceCIDR
}

// maxUnknown is the number of objects whose annotations are reported: a template of pods may have a wrong one.
const maxUnknown = 100

// Problems returns the problems, sorted by object. Of many objects it returns those of some, and the last one tells how
// many more there are.
func (u *UnknownAnnotations) Problems() (all []ObjectProblem) {
	objects := slices.SortedFunc(maps.Keys(u.objects), Ref.Compare)
	more := len(objects) - maxUnknown
	for _, object := range objects[:min(len(objects), maxUnknown)] {
		for _, e := range u.objects[object] {
			all = append(all, ObjectProblem{object, condition.AnnotationUnknown.New("%s", e.Error())})
		}
	}
	if more > 0 {
		last := objects[maxUnknown-1]
		all = append(all, ObjectProblem{last, condition.AnnotationUnknown.New("%s with such annotations", plural.Of(more, "more object"))})
	}
	return all
}
