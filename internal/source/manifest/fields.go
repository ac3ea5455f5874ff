// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"beeline.io/beeline/internal/suggest"
)

// fieldIndex maps the JSON names of an API type's fields to indexes for reflect.Value.FieldByIndex.
type fieldIndex map[string][]int

var fieldIndexes sync.Map // reflect.Type to fieldIndex

func fieldsOf(t reflect.Type) fieldIndex {
	if known, ok := fieldIndexes.Load(t); ok {
		return known.(fieldIndex)
	}
	known := make(fieldIndex)
	for i := range t.NumField() {
		f := t.Field(i)
		switch name, _, _ := strings.Cut(f.Tag.Get("json"), ","); {
		case name == "-" || !f.IsExported():
		case name != "":
			known[name] = []int{i}
		case f.Anonymous:
			// An embedded field without a name: its fields count as fields of t.
			for name, index := range fieldsOf(f.Type) {
				known[name] = append([]int{i}, index...)
			}
		}
	}
	fieldIndexes.Store(t, known)
	return known
}

// nearest returns the known field that an unknown one probably means, or "".
func (known fieldIndex) nearest(name string) string {
	return suggest.Nearest(name, slices.Collect(maps.Keys(known)))
}
