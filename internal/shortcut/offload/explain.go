// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"fmt"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/node/flow"
	"beeline.io/beeline/internal/report/explain"
)

// explainPacket looks for a packet's flow in the flow cache, and in the kernel's flowtables, also those of others.
func explainPacket(bpffs string, packet flow.Tuple, device string) (found *explain.Offload, note string, err error) {
	tables, err := OpenTables(bpffs)
	if err != nil {
		return nil, "", err
	}
	if tables != nil {
		defer tables.Close()
		found = explainCached(tables, packet, device)
	}
	if found != nil && found.Path == api.PathCache {
		return found, "", nil
	}
	path, out, err := offloadedFlow(packet)
	if err != nil {
		note = fmt.Sprintf("whether a flowtable of the kernel has the flow is not known: %s", err)
	}
	if path != "" {
		found = &explain.Offload{Path: path, Rewritten: explain.EndsOf(out)}
	}
	return found, note, nil
}

func explainCached(tables *Tables, packet flow.Tuple, device string) *explain.Offload {
	found := &explain.Offload{Path: api.PathSlow}
	for _, f := range findCached(tables, packet) {
		in, out := explain.DeviceName(uint32(f.InDevice)), explain.DeviceName(uint32(f.OutDevice))
		if device == "" || device == in {
			found = &explain.Offload{Path: api.PathCache, InDevice: in, OutDevice: out, Rewritten: explain.EndsOf(f.Out)}
		}
	}
	return found
}
