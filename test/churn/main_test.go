// SPDX-License-Identifier: Apache-2.0

// Package churn changes the endpoints of many Services as fast as a large cluster does, while clients use all
// of them: no request may fail, and nothing may be left over at the end.
package churn

import (
	"flag"
	"os"
	"testing"
	"time"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// lasting is how long endpoints change.
var lasting = flag.Duration("churn", 30*time.Second, "how long endpoints change")

// program is the beeline binary under test.
var program string

func TestMain(m *testing.M) {
	lab.Main()
	if os.Args[0] == partPod {
		servePod(os.Args[1:])
	}
	os.Exit(node.Run(m, &program))
}
