// SPDX-License-Identifier: Apache-2.0

package plural

import "testing"

func TestOf(t *testing.T) {
	for _, test := range []struct {
		n    int
		one  string
		want string
	}{{0, "error", "0 errors"}, {1, "error", "1 error"}, {2, "error", "2 errors"}, {1, "address", "1 address"}, {2, "address", "2 addresses"},
		{1, "retry", "1 retry"}, {2, "retry", "2 retries"}, {2, "key", "2 keys"}, {2, "prefix", "2 prefixes"}} {
		if got := Of(test.n, test.one); got != test.want {
			t.Errorf("%d %s: %q, want %q", test.n, test.one, got, test.want)
		}
	}
	if one, two := Of(1, "flow", "of clients"), Of(2, "flow", "of clients"); one != "1 flow of clients" || two != "2 flows of clients" {
		t.Errorf("%q, %q", one, two)
	}
}
