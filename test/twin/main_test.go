// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"os"
	"testing"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(node.RunParallel(m, &program))
}
