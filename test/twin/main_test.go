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

// The short form of the tests, a part of make test, has a minute and a half on a slow machine. Until these times after
// its begin the tests of each kind begin with something; what has not begun then is skipped, and the summary says so.
const (
	ofChanges = 40 * time.Second
	ofFrames  = 58 * time.Second
	ofKinds   = 66 * time.Second
	ofRest    = 74 * time.Second
)

var started = time.Now()

// inTime skips a part of the short form for which no time is left.
func inTime(t testing.TB, until time.Duration) {
	t.Helper()
	if testing.Short() && time.Since(started) > until {
		t.Skipf("the short form has no time left for this: %s had passed on this machine", until)
	}
}
