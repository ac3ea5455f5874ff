// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"os"
	"testing"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// beeline is the program whose agents the tests run.
var beeline string

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(node.Run(m, &beeline))
}
