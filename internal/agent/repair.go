// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"beeline.io/beeline/internal/report/condition"
)

// repairInterval is how often pins and links are checked, which takes less than a millisecond. The kernel does
// not report all the ways in which they can be lost.
const repairInterval = time.Second

// repair restores missing pins and links, and what the components find missing.
func (a *Agent) repair() {
	if !a.synced {
		return
	}
	repaired, err := a.datapath.Repair()
	a.logRepaired(append(repaired, a.components.Repair()...))
	a.noteFaults(err)
	failed := ""
	if err != nil {
		failed = err.Error()
	}
	if failed != a.repairErrors && failed != "" {
		condition.DatapathDamaged.Log(a.log, "the datapath is damaged and cannot be repaired; retrying", "error", err)
	}
	a.repairErrors = failed
}

func (a *Agent) logRepaired(repaired []string) {
	for _, what := range repaired {
		a.log.Error("repaired what another program changed or removed", "what", what)
	}
}
