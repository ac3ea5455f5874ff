// SPDX-License-Identifier: Apache-2.0

// Package gateway is the gateway as a component of the agent: established flows that this node forwards skip its IP
// stack (internal/gateway).
package gateway

import (
	"cmp"
	"context"

	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/condition"
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/gateway"
	"beeline.io/beeline/internal/gateway/flowtable"
	"beeline.io/beeline/internal/inspect"
	"beeline.io/beeline/internal/metrics"
)

// New returns the gateway. It is enabled by --gateway-devices.
func New() *component.Component {
	c := &config{}
	bpf := datapath.Gateway()
	return &component.Component{Name: bpf.Name, BPF: bpf, AddFlags: c.addFlags, Complete: c.complete, Check: c.unmatched, Options: c.options, New: c.run, Cleanup: flowtable.Remove}
}

func (c *config) options(o *datapath.Options) {
	if c.enabled() {
		o.Gateway = &datapath.GatewayOptions{}
	}
}

// running is a running gateway.
type running struct {
	env     component.Env
	gateway *gateway.Gateway
}

func (c *config) run(env component.Env) (*component.Instance, error) {
	if !c.enabled() {
		return &component.Instance{Start: func() { removeTables(env) }}, nil
	}
	g, err := c.gateway(env)
	if err != nil {
		return nil, err
	}
	r := &running{env, g}
	return &component.Instance{
		Start: g.Start, Run: []component.Task{{Name: "gateway", Run: g.Run}}, Close: g.Close,
		Status: r.status, Conditions: func() condition.List { return append(g.Conditions(), c.unmatched()...) }, Metrics: r.metrics,
		Answers: map[string]component.Answer{
			gateway.FlowsPath: func(context.Context) (any, error) { return g.List() },
		},
	}, nil
}

// removeTables removes what an agent with the gateway has left in nftables.
func removeTables(env component.Env) {
	if err := flowtable.Remove(); err != nil {
		env.Log.Warn("the gateway's tables of an earlier agent", "error", err)
	}
}

func (r *running) status(s *inspect.Status) {
	status := r.gateway.Status()
	status.Packets, status.Bytes, _ = datapath.ReadGatewayCounters(r.env.BPFFS)
	s.Gateway = &status
}

func (r *running) metrics() ([]inspect.Metric, error) {
	packets, bytes, err := datapath.ReadGatewayCounters(r.env.BPFFS)
	if err != nil {
		return nil, err
	}
	b := metrics.NewBatch()
	for path, n := range packets {
		b.Add("beeline_gateway_packets_total", float64(n), "path", path)
	}
	b.Add("beeline_gateway_bytes_total", float64(bytes))
	status := r.gateway.Status()
	b.Add("beeline_gateway_entries", float64(status.Entries))
	b.Add("beeline_gateway_entries_limit", float64(status.Limit))
	b.Add("beeline_gateway_learned_total", float64(status.Learned))
	for reason, n := range status.Ended {
		b.Add("beeline_gateway_ended_total", float64(n), "reason", reason)
	}
	refused := 0
	for _, n := range status.Refused {
		refused += n
	}
	b.Add("beeline_gateway_refused", float64(refused))
	b.Add("beeline_gateway_provider_info", 1, "provider", cmp.Or(status.Provider, "none"))
	replaced := uint64(0)
	if status.Flowtable != nil {
		for _, n := range status.Flowtable.Replaced {
			replaced += n
		}
	}
	b.Add("beeline_gateway_flowtable_replaced_total", float64(replaced))
	return b.Metrics, nil
}
