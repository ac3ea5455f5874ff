// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// fieldIndex finds the Go fields of an API type by their JSON names, as
// reflect.Value.FieldByIndex wants them.
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
			// Embedded without a name: its fields count as those of t.
			for name, index := range fieldsOf(f.Type) {
				known[name] = append([]int{i}, index...)
			}
		}
	}
	fieldIndexes.Store(t, known)
	return known
}

// nearest returns the known field that an unknown one was probably meant to be,
// or "".
func (known fieldIndex) nearest(name string) string {
	best, bestDistance := "", 3
	if len(name) > 64 { // no field's name, and the distance takes time
		return ""
	}
	for _, k := range slices.Sorted(maps.Keys(known)) {
		distance := editDistance(strings.ToLower(name), strings.ToLower(k))
		if distance < bestDistance && distance < len(k) {
			best, bestDistance = k, distance
		}
	}
	return best
}

// editDistance counts the letters to insert, remove or replace (Levenshtein).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
