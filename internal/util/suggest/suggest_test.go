// SPDX-License-Identifier: Apache-2.0

package suggest

import "testing"

func TestOf(t *testing.T) {
	known := []string{"manifests", "log-level", "list", "show"}
	for word, want := range map[string]string{
		"manifest":  "manifests",
		"log-levle": "log-level",
		"LIST":      "list",
		"lst":       "list",
		"sho":       "show",
		"":          "",
		"nothing":   "",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
	if got := Nearest("ab", []string{"ac", "aa"}); got != "aa" {
		t.Errorf("two are equally near: %q", got)
	}
	if got := DidYouMean("sho", known); got != `, did you mean "show"?` {
		t.Error(got)
	}
}
