// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"os"
	"testing"
	"time"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(node.RunParallel(m, &program))
}

// The short form of the tests, a part of make test, has a minute and a half on a slow machine. What has not begun
// after most of it is skipped, and the summary says so.
const mostOfShort = 75 * time.Second

var started = time.Now()

// inTime skips a part of the short form for which no time is left.
func inTime(t testing.TB) {
	t.Helper()
	if testing.Short() && time.Since(started) > mostOfShort {
		t.Skipf("the short form has no time left for this: it had %s on this machine", mostOfShort)
	}
}
