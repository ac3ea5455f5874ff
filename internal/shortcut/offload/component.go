// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"cmp"
	"context"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/report/metrics"
	"beeline.io/beeline/internal/shortcut/offload/flowtable"
)

// New returns flow offload. It is enabled by --offload-devices.
func New() *component.Component {
	c := &config{}
	programs := Programs(c.enabled)
	return &component.Component{Name: programs.Name, BPF: programs, AddFlags: c.addFlags, Complete: c.complete, Check: func() condition.List { return c.unmatched(new(node.Network)) }, New: c.run, Explain: explainPacket, Cleanup: flowtable.Remove}
}

// running is flow offload of a running agent.
type running struct {
	env     component.Env
	offload *Offload
}

func (c *config) run(env component.Env) (*component.Instance, error) {
	if !c.enabled() {
		return &component.Instance{Start: func() { removeTables(env, flowtable.Remove) }}, nil
	}
	g, err := c.offload(env)
	if err != nil {
		return nil, err
	}
	r := &running{env, g}
	return &component.Instance{
		Start: func() {
			removeTables(env, flowtable.RemoveFormer)
			g.Start()
		},
		Run: []component.Task{{Name: "offload", Run: g.Run}}, Close: g.Close,
		Status: r.status, Conditions: func() condition.List { return append(g.Conditions(), c.unmatched(env.Network)...) }, Metrics: r.metrics,
		Answers: map[string]component.Answer{
			api.OffloadFlowsPath: func(context.Context) (any, error) { return g.List() },
		},
	}, nil
}

// offload returns the running offload.
func (c *config) offload(env component.Env) (*Offload, error) {
	var edge *conntrack.Tables
	if env.Datapath.Map(bpf.EdgeTCMapConntrack) != nil {
		edge = conntrack.TablesOf(env.Datapath.ConntrackMaps())
	}
	return newOffload(kernel{Datapath: env.Datapath}, Config{
		Provider: Provider(c.provider), NoFlowCache: env.Datapath.Unavailable[ComponentName], Threshold: c.threshold,
		IgnoreFilters: c.ignoreFilters, Policy: c.policy, Edge: edge, Log: env.Log, Network: env.Network,
		Devices: func() ([]Device, error) { return c.find(env.Network) },
	})
}

// removeTables removes what an agent with flow offload has left in nftables.
func removeTables(env component.Env, remove func() error) {
	if err := remove(); err != nil {
		env.Log.Warn("the offload tables of an earlier agent", "error", err)
	}
}

func (r *running) status(s *api.Status) {
	status := r.offload.Status()
	status.Packets, status.CacheBytes, _ = ReadCounters(r.env.BPFFS)
	s.Offload = &status
}

func (r *running) metrics() ([]api.Metric, error) {
	packets, bytes, err := ReadCounters(r.env.BPFFS)
	if err != nil {
		return nil, err
	}
	status := r.offload.Status()
	status.Packets, status.CacheBytes = packets, bytes
	b := metrics.NewBatch()
	addStatus(b, &status)
	return b.Metrics, nil
}

// addStatus adds the state of flow offload with its counters of packets.
func addStatus(b *metrics.Batch, status *Status) {
	for path, n := range status.Packets {
		b.Add("beeline_offload_packets_total", float64(n), "path", path)
	}
	b.Add("beeline_offload_bytes_total", float64(status.CacheBytes))
	b.Add("beeline_offload_entries", float64(status.CacheEntries))
	b.Add("beeline_offload_entries_limit", float64(status.CacheLimit))
	b.Add("beeline_offload_learned_total", float64(status.LearnedEntries))
	for reason, n := range status.EndedEntries {
		b.Add("beeline_offload_ended_total", float64(n), "reason", reason)
	}
	refused := 0
	for _, n := range status.RefusedDirections {
		refused += n
	}
	b.Add("beeline_offload_refused", float64(refused))
	b.Add("beeline_offload_provider_info", 1, "provider", cmp.Or(status.Provider, "none"))
	replaced := uint64(0)
	if status.Flowtable != nil {
		for _, n := range status.Flowtable.Replaced {
			replaced += n
		}
	}
	b.Add("beeline_offload_flowtable_replaced_total", float64(replaced))
}
