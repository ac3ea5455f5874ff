// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/source"
)

// An API server that has been away for long is worth a complaint; one that is
// restarted is not, and manifests have none.
func TestAway(t *testing.T) {
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	for _, test := range []struct {
		name       string
		connection *source.Connection
		want       string
	}{
		{"manifests", nil, ""},
		{"connected", &source.Connection{Connected: true, Since: ago(time.Hour)}, ""},
		{"restarting", &source.Connection{Since: ago(5 * time.Second), Error: "refused"}, ""},
		{"away", &source.Connection{Since: ago(time.Hour), Error: "refused"}, "has not answered for 1h0m0s, and changes are not heard of: the last state is in force: refused"},
	} {
		s := Status{Running: true, Source: Source{Connection: test.connection}}
		got := strings.Join(s.Complaints(), "; ")
		if test.want == "" && got != "" || !strings.Contains(got, test.want) {
			t.Errorf("%s: complaints %q, want %q", test.name, got, test.want)
		}
	}
}
