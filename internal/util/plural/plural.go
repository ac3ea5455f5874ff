// SPDX-License-Identifier: Apache-2.0

// Package plural writes numbers with the things that they count.
package plural

import (
	"fmt"
	"strings"
)

// Of returns a number and what it counts, such as "1 flow" and "2 flows of clients". one is the singular. With further
// words, the noun is its first word: `Of(2, "flow", "of clients")`.
func Of[N ~int | ~int64 | ~uint32 | ~uint64](n N, one string, further ...string) string {
	noun := one
	if n != 1 {
		noun = many(one)
	}
	return strings.Join(append([]string{fmt.Sprint(n), noun}, further...), " ")
}

// many returns a plural.
func many(one string) string {
	switch {
	case strings.HasSuffix(one, "y") && !strings.HasSuffix(one, "ay") && !strings.HasSuffix(one, "ey"):
		return strings.TrimSuffix(one, "y") + "ies"
	case strings.HasSuffix(one, "s"), strings.HasSuffix(one, "x"), strings.HasSuffix(one, "ch"):
		return one + "es"
	}
	return one + "s"
}
