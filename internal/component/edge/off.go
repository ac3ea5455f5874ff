// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"

	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/condition"
	"beeline.io/beeline/internal/edge"
	"beeline.io/beeline/internal/inspect"
	"beeline.io/beeline/internal/wakeup"
)

// instanceOff returns the component while the edge is disabled. It rebuilds the prefilter, which the hooks of sockets
// use, too: when ServiceCIDRs have changed, and with each audit.
func (r *running) instanceOff() *component.Instance {
	rebuild := wakeup.NewSignal()
	return &component.Instance{
		Apply: func(component.Change) {
			if !r.env.Datapath.Prefilter().Enabled() {
				rebuild.Send()
			}
		},
		Audit: func() ([]string, error) {
			rebuild.Send()
			return nil, nil
		},
		Run: []component.Task{{Name: "prefilter", Run: func(ctx context.Context) error {
			for {
				select {
				case <-ctx.Done():
					return nil
				case <-rebuild:
					if err := r.env.Syncer.RebuildPrefilter(); err != nil {
						r.env.Log.Error("the prefilter cannot be rebuilt: calls that are not for Services take longer", "error", err)
					}
				}
			}
		}}},
		Status: r.statusOff, Faults: r.faultsOff,
	}
}

// faultsOff returns why clients outside the cluster are not served although they should be.
func (r *running) faultsOff() condition.List {
	if r.noEdge == "" {
		return nil
	}
	return condition.List{condition.EdgeOff.New("%s", r.noEdge)}
}

// statusOff is the status without an edge.
func (r *running) statusOff(s *inspect.Status) {
	s.NoEdge = r.noEdge
	s.Slots = r.env.Syncer.SlotUsage(r.establishedTimeout)
	s.Edge = &edge.Status{Mode: edge.Off, Devices: []edge.DeviceStatus{}}
}
