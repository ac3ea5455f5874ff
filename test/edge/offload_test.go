// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"beeline.io/beeline/internal/api"
)

// Flows of Services are tracked by the edge alone, also where flow offload has the same devices: it refuses those to a
// backend of this node, which pass the stack, and does not see the others. A flow that the node forwards for others is
// flow offload's (G1).
func TestOffloadLeavesServiceFlows(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := startWorld(t, "--edge-mode="+mode, "--offload-devices=*", "--offload-provider=cache", "--offload-threshold=4")
		w.apply("web", objects(w.public("a1", "b1"))...)
		direct := w.open("udp", addresses(w.Host("a1"), 8080)[0])
		w.eventually("flow offload has a flow", func() bool {
			w.served(direct)
			return slices.ContainsFunc(w.forwarded(), func(f api.OffloadFlow) bool {
				return f.Client.String() == direct.LocalAddr().String() && f.FromClient.Path == api.PathCache
			})
		})
		const messages = 40
		pods := map[string]bool{}
		for len(pods) < 2 { // a flow to each pod, and sometimes more
			conn := w.open("udp", addresses(w.Host("node-a"), nodePort)[0])
			for range messages {
				pods[w.served(conn)] = true
			}
		}
		refused := false
		for _, f := range w.forwarded() {
			if f.Client.String() == direct.LocalAddr().String() {
				continue
			}
			for _, d := range []api.FlowDirection{f.FromClient, f.ToClient} {
				refused = refused || strings.Contains(d.Reason, "flow of a Service")
				if d.Path == api.PathCache {
					t.Errorf("flow offload has the flow %v > %v of a Service", f.Client, f.Backend)
				}
			}
		}
		if !refused {
			t.Errorf("no flow is refused because it is the edge's: %+v", w.forwarded())
		}
	})
}

// forwarded are the flows of `beeline offload flows`.
func (w *world) forwarded() []api.OffloadFlow {
	w.t.Helper()
	var list struct{ Items []api.OffloadFlow }
	text, err := w.agent.CLI("offload", "flows", "-o", "json")
	w.must(err)
	w.must(json.Unmarshal([]byte(text), &list))
	return list.Items
}
