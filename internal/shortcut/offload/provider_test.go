// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"errors"
	"testing"

	"beeline.io/beeline/internal/node/flow"
)

// Providers that are refused for the same reason are named together.
func TestRejections(t *testing.T) {
	var all rejections
	for _, p := range []Provider{Hardware, Flowtable} {
		all.add(p, errors.New("no modules"))
	}
	all.add(Cache, errors.New("no programs"))
	if got, want := all.String(), "flowtable-hardware, flowtable: no modules; cache: no programs"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Flows without a place in the cache are counted for the condition; those that stay on the stack otherwise are not.
func TestWithoutRoom(t *testing.T) {
	f := &FlowCache{refused: refusals{}}
	for i, reason := range []string{errFull.Error(), "a rule", errFull.Error()} {
		f.refused.add(flow.Flow{InDevice: i + 1}, reason)
	}
	if n := f.withoutRoom(); n != 2 {
		t.Errorf("%d directions of flows are without room, want 2", n)
	}
	if n := (*FlowCache)(nil).withoutRoom(); n != 0 {
		t.Errorf("without a flow cache %d directions are without room", n)
	}
}
