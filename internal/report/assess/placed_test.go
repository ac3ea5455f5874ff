// SPDX-License-Identifier: Apache-2.0

package assess

import (
	"testing"

	"beeline.io/beeline/internal/report/condition"
)

// Each mistake in an annotation is one condition. Those of other objects, and other warnings of the source, stay.
func TestPlaced(t *testing.T) {
	warning := func(object, annotation string) condition.Condition {
		return condition.SourceWarning.New("a.yaml:3: metadata.annotations[%s]: wrong", annotation).At(object)
	}
	invalid := func(object, message string) condition.Condition {
		return condition.AnnotationInvalid.New("%s", message).At(object).Do("correct it")
	}
	for _, test := range []struct {
		name string
		all  condition.List
		want string
	}{
		{"both", condition.List{warning("Service a", "x"), invalid("Service a", "annotation x: wrong")},
			"AnnotationInvalid: Service a: a.yaml:3: annotation x: wrong: correct it"},
		{"one condition of two", condition.List{warning("Service a", "x"), warning("Service a", "y"), invalid("Service a", "annotation x: wrong (and 1 more)")},
			"SourceWarning: Service a: a.yaml:3: metadata.annotations[y]: wrong: " + condition.SourceWarning.Remedy + "\nAnnotationInvalid: Service a: a.yaml:3: annotation x: wrong: correct it"},
		{"of an API server", condition.List{invalid("Service a", "annotation x: wrong (and 1 more)")}, "AnnotationInvalid: Service a: annotation x: wrong (and 1 more): correct it"},
		{"of another object", condition.List{warning("Service b", "x"), invalid("Service a", "annotation x: wrong")},
			"SourceWarning: Service b: a.yaml:3: metadata.annotations[x]: wrong: " + condition.SourceWarning.Remedy + "\nAnnotationInvalid: Service a: annotation x: wrong: correct it"},
	} {
		if got := Placed(test.all).String(); got != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", test.name, got, test.want)
		}
	}
}
