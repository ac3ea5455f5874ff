// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/test/node"
)

// SweepTimeout is for GC passes over all flows. One is due every ten seconds, but after one that took more than
// half a second, as on a busy machine, a minute later.
const SweepTimeout = 5 * time.Minute

// AwaitUntracked waits until an agent has untracked Services, none of which still has a history of earlier
// flows.
func AwaitUntracked(ctx context.Context, agent *node.Agent) (*bpf.Tables, error) {
	tables, err := bpf.OpenTables(agent.BPFFS())
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(SweepTimeout); ; time.Sleep(50 * time.Millisecond) {
		untracked, contested, err := UntrackedServices(tables)
		if err != nil || untracked > 0 && contested == 0 {
			return tables, err
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %d of %d untracked Services are contested after %s", agent.Host.Name, contested, untracked, SweepTimeout)
		}
	}
}

// UntrackedServices counts the untracked service ports, and those with contested slots.
func UntrackedServices(tables *bpf.Tables) (all, contested int, err error) {
	index, err := tables.Frontends.All()
	untracked := map[uint32]bool{}
	for _, number := range index {
		f, err := codec.LoadFrontend(tables, number)
		if err != nil {
			return 0, 0, err
		}
		if f.Untracked() {
			untracked[f.Port()] = untracked[f.Port()] || f.HasHistory()
		}
	}
	for _, history := range untracked {
		if history {
			contested++
		}
	}
	return len(untracked), contested, err
}
