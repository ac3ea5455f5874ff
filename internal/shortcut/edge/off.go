// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"sync/atomic"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/wakeup"
)

// off is the component while the edge is disabled. It rebuilds the prefilter, which the hooks of sockets use, too: when
// it has been disabled, and with each audit.
type off struct {
	*running
	rebuild wakeup.Signal
	// detached is set once no programs of an earlier agent with an edge are attached: they need the bits of flows.
	detached atomic.Bool
	failed   string // the last error
}

func (r *running) instanceOff() *component.Instance {
	o := &off{running: r, rebuild: wakeup.NewSignal()}
	return &component.Instance{
		Repair: o.repair, Audit: o.audit, Run: []component.Task{{Name: "prefilter", Run: o.run}},
		Status: r.statusOff, Faults: r.faultsOff,
	}
}

func (o *off) repair() []string {
	o.detached.Store(true) // Repair is called after Attach
	if !o.env.Datapath.Prefilter().Enabled() {
		o.rebuild.Send()
	}
	return nil
}

func (o *off) audit() ([]string, error) {
	o.rebuild.Send()
	return nil, nil
}

func (o *off) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-o.rebuild:
		case <-o.env.Datapath.Prefilter().Wanted():
		}
		if o.detached.Load() {
			o.note(o.env.Syncer.RebuildPrefilterWithoutEdge())
		}
	}
}

// note logs a new error.
func (o *off) note(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != o.failed {
		o.env.Log.Error("the prefilter cannot be rebuilt, retrying; calls that are not for Services take longer", "error", err)
	}
	o.failed = text
}

// faultsOff returns why clients outside the cluster are not served although they should be.
func (r *running) faultsOff() condition.List {
	if r.noEdge == "" {
		return nil
	}
	return condition.List{condition.EdgeOff.New("%s", r.noEdge)}
}

// statusOff is the status without an edge.
func (r *running) statusOff(s *api.Status) {
	s.EdgeUnavailable = r.noEdge
	s.UntrackedSlots = r.env.Syncer.SlotUsage(r.establishedTimeout)
	s.Edge = &api.Edge{Mode: api.EdgeOff, Devices: []api.EdgeDevice{}}
}
