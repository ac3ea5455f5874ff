// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/report/metrics"
	"beeline.io/beeline/internal/tables/reconcile"
)

// newMetrics returns the agent's metrics without those of the components, which do not exist yet.
func (a *Agent) newMetrics() *metrics.Metrics {
	m := metrics.New(metrics.Options{Version: a.version, Started: a.started, MaxSeries: int(a.config.MetricsMaxSeries), Log: a.log})
	m.Proxy.SetState(a.proxyState)
	m.Collect("agent", a.ownMetrics)
	a.conditions = &conditions{agent: a}
	m.Collect("conditions", a.conditions.metrics)
	return m
}

// proxyState is what the metrics with kube-proxy's names read.
func (a *Agent) proxyState() metrics.State {
	s := metrics.State{LastSuccess: a.syncer.StatsWithoutWalk().LastSuccess}
	if counted, ok := a.source.(source.Counted); ok {
		counts := counted.Counts()
		s.Services, s.Endpoints = counts[service.KindService].Queued, counts[service.KindEndpointSlice].Queued
	}
	return s
}

// ownMetrics returns the metrics of the agent's state. It walks no table, and of the
// objects only backends with health checks.
func (a *Agent) ownMetrics() ([]api.Metric, error) {
	b := metrics.NewBatch()
	for _, u := range a.syncer.UsageWith(a.conditions.affinity()) {
		b.Add("beeline_table_entries", float64(u.Used), "table", u.Table)
		b.Add("beeline_table_limit", float64(u.Limit), "table", u.Table)
	}
	addSync(b, a.syncer.StatsWithoutWalk())
	addSource(b, a.sourceStatus())
	a.countObjects(b)
	if health := a.healthStatus(); health != nil {
		b.Add("beeline_health_check_backends", float64(len(health.Down)), "state", "down")
		b.Add("beeline_health_check_backends", float64(health.Backends-len(health.Down)), "state", "up")
	}
	b.Add("beeline_datapath_info", 1, "tables", bpf.LayoutVersion())
	b.Add("beeline_hooks_wanted", float64(a.datapath.Hooks()))
	attached, err := a.datapath.Attachments()
	if err != nil {
		return b.Metrics, err
	}
	attached = slices.DeleteFunc(attached, func(h bpf.Attachment) bool { return h.Detached })
	b.Add("beeline_hooks_attached", float64(len(attached)))
	return b.Metrics, nil
}

// addSync adds how far the tables follow the objects.
func addSync(b *metrics.Batch, s reconcile.Stats) {
	b.Add("beeline_sync_complete", number(s.Synced))
	b.Add("beeline_sync_applied_total", float64(s.Applied))
	b.Add("beeline_sync_updates_total", float64(s.Updates))
	b.Add("beeline_sync_pending_frontends", float64(s.Pending))
	b.Add("beeline_sync_failing_frontends", float64(s.Failing))
	b.Add("beeline_sync_left_out_objects", float64(s.LeftOut))
	b.Add("beeline_sync_failures_total", float64(s.Failures))
	b.Add("beeline_sync_retries_total", float64(s.Retries))
	b.Add("beeline_sync_repairs_total", float64(s.Repairs))
	b.Add("beeline_sync_last_success_timestamp_seconds", metrics.Seconds(s.LastSuccess))
	b.Add("beeline_sync_last_audit_timestamp_seconds", metrics.Seconds(s.LastAudit))
}

// addSource adds the state of the source of the objects.
func addSource(b *metrics.Batch, s api.Source) {
	b.Add("beeline_source_problems", float64(s.Errors), "severity", string(condition.Error))
	b.Add("beeline_source_problems", float64(s.Warnings), "severity", string(condition.Warning))
	if s.Connection != nil {
		b.Add("beeline_source_connected", number(s.Connection.Connected))
		b.Add("beeline_source_last_answer_timestamp_seconds", metrics.Seconds(s.Connection.LastSeen))
	}
}

// countObjects adds what the source has received.
func (a *Agent) countObjects(b *metrics.Batch) {
	counted, ok := a.source.(source.Counted)
	if !ok {
		return
	}
	for kind, counts := range counted.Counts() {
		b.Add("beeline_source_lists_total", float64(counts.Lists), "kind", string(kind))
		b.Add("beeline_source_errors_total", float64(counts.Errors), "kind", string(kind))
	}
}

// number returns 1 for true and 0 for false.
func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
