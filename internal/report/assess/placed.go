// SPDX-License-Identifier: Apache-2.0

package assess

import (
	"fmt"
	"slices"
	"strings"

	"beeline.io/beeline/internal/report/condition"
)

// Placed returns the conditions, sorted. An invalid annotation in manifests is both a warning of the source, with file
// and line, and a condition of the rules, with what happens meanwhile and what to change: it becomes one with both. If
// the condition stands for several of an object, the others stay warnings of the source, and are not counted there.
func Placed(all condition.List) condition.List {
	places, warnings := map[annotated]string{}, map[string]int{}
	for _, c := range all {
		if key, place, ok := warnedOf(c); ok {
			places[key] = place
			warnings[key.object]++
		}
	}
	merged := map[annotated]bool{}
	placed := slices.Clone(all)
	for i, c := range placed {
		key, ok := invalidOf(c)
		if place, warned := places[key]; ok && warned {
			others := fmt.Sprintf(" (and %d more)", warnings[key.object]-1)
			placed[i].Message, merged[key] = place+strings.TrimSuffix(c.Message, others), true
		}
	}
	return slices.DeleteFunc(placed, func(c condition.Condition) bool {
		key, _, ok := warnedOf(c)
		return ok && merged[key]
	}).Sort()
}

// annotated is an annotation of an object.
type annotated struct{ object, annotation string }

// warnedOf returns the annotation that a warning of the source is about, and its place in the manifests.
func warnedOf(c condition.Condition) (key annotated, place string, ok bool) {
	place, rest, found := strings.Cut(c.Message, "metadata.annotations[")
	name, _, closed := strings.Cut(rest, "]: ")
	return annotated{c.Object, name}, place, found && closed && c.Code == condition.SourceWarning.Code
}

// invalidOf returns the annotation that a condition of the rules is about.
func invalidOf(c condition.Condition) (key annotated, ok bool) {
	rest, found := strings.CutPrefix(c.Message, "annotation ")
	name, _, closed := strings.Cut(rest, ": ")
	return annotated{c.Object, name}, found && closed && c.Code == condition.AnnotationInvalid.Code
}
