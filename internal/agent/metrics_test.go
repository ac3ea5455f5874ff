// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/source"
	"beeline.io/beeline/internal/report/metrics"
	"beeline.io/beeline/internal/report/metrics/metricstest"
	"beeline.io/beeline/internal/tables/reconcile"
)

// Each number of what the tables lack moves its metric and no other.
func TestSyncAndMetrics(t *testing.T) {
	var s reconcile.Stats
	metricstest.EachMovesOne(t, &s, func(b *metrics.Batch) { addSync(b, s) }, map[string]string{
		"Synced":      "beeline_sync_complete",
		"LastSync":    "",
		"LastSuccess": "beeline_sync_last_success_timestamp_seconds",
		"Applied":     "beeline_sync_applied_total",
		"LastAudit":   "beeline_sync_last_audit_timestamp_seconds",
		"Updates":     "beeline_sync_updates_total",
		"Failures":    "beeline_sync_failures_total",
		"Retries":     "beeline_sync_retries_total",
		"Repairs":     "beeline_sync_repairs_total",
		"Failing":     "beeline_sync_failing_frontends",
		"Pending":     "beeline_sync_pending_frontends",
		"LeftOut":     "beeline_sync_left_out_objects",
		"Untracked":   "",
		"Remembering": "",
	})
}

// Each number of the source, and of its connection, moves its metric and no other.
func TestSourceAndMetrics(t *testing.T) {
	var s struct {
		api.Source
		Server source.Connection
	}
	s.Connection = &s.Server
	metricstest.EachMovesOne(t, &s, func(b *metrics.Batch) { addSource(b, s.Source) }, map[string]string{
		"Source.Synced":    "",
		"Source.LastGood":  "",
		"Source.Errors":    "beeline_source_problems{severity=error}",
		"Source.Warnings":  "beeline_source_problems{severity=warning}",
		"Server.Connected": "beeline_source_connected",
		"Server.Since":     "",
		"Server.LastSeen":  "beeline_source_last_answer_timestamp_seconds",
	})
}
