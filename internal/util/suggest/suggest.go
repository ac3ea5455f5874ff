// SPDX-License-Identifier: Apache-2.0

// Package suggest finds the known name that a misspelled one probably means.
package suggest

import (
	"fmt"
	"slices"
	"strings"
)

// Nearest returns the known name that differs from word in at most two letters, ignoring case, or "". Of
// several it returns the nearest, then the alphabetically first.
func Nearest(word string, known []string) string {
	if len(word) > 64 { // no name is that long, and the distance is quadratic
		return ""
	}
	best, distance := "", 3
	for _, k := range slices.Sorted(slices.Values(known)) {
		if d := editDistance(strings.ToLower(word), strings.ToLower(k)); d < distance && d < len(k) {
			best, distance = k, d
		}
	}
	return best
}

// DidYouMean returns `, did you mean "x"?` for the end of an error, or "".
func DidYouMean(word string, known []string) string {
	if meant := Nearest(word, known); meant != "" {
		return fmt.Sprintf(", did you mean %q?", meant)
	}
	return ""
}

// editDistance returns the Levenshtein distance.
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
