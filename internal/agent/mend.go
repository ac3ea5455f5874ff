// SPDX-License-Identifier: Apache-2.0

package agent

import "time"

// mendInterval is how often pins and links are looked at. A look takes less than a
// millisecond, and no message of the kernel tells of each way to lose one.
const mendInterval = time.Second

// mend puts back what was taken from under the agent: pins and links.
func (a *Agent) mend() {
	if !a.synced {
		return
	}
	mended, err := a.datapath.Mend()
	if a.edge.Lost() {
		mended = append(mended, a.edge.Mend()...)
	}
	for _, what := range mended {
		a.log.Error("mended what somebody else has taken away", "what", what)
	}
	failed := ""
	if err != nil {
		failed = err.Error()
	}
	if failed != a.unmended && failed != "" {
		a.log.Error("the datapath is damaged and cannot be mended; trying again", "error", err)
	}
	a.unmended = failed
}
