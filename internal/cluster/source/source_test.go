// SPDX-License-Identifier: Apache-2.0

package source

import "testing"

// Problems name the place first, like compilers, and omit what is unknown.
func TestProblemString(t *testing.T) {
	problems := Problems{
		{File: "web.yaml", Line: 12, Object: "Service default/web", Reason: "spec.ports[0].port: 70000: expected a port from 1 to 65535"},
		{File: "web.yaml", Line: 3, Object: "Secret", Reason: "skipped", Warning: true},
		{File: "web.yaml", Reason: "cannot be read"},
		{Object: "Service default/web", Reason: "spec.type: unknown"},
	}
	const want = `web.yaml:12: Service default/web: spec.ports[0].port: 70000: expected a port from 1 to 65535
web.yaml:3: warning: Secret: skipped
web.yaml: cannot be read
Service default/web: spec.type: unknown`
	if got := problems.Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if n := problems.Errors(); n != 3 {
		t.Errorf("%d errors", n)
	}
}
