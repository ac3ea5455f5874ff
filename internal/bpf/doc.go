// SPDX-License-Identifier: Apache-2.0

// Package bpf loads the BPF programs, maintains their tables and attaches them. It handles addresses,
// rows and links, and does not depend on Kubernetes.
//
// Its files by subject:
//
//   - options and components: bpf.go, component.go, components.go, registry.go, constants.go, limits.go
//   - a start: open.go, load.go, attach.go, features.go, helper_flags.go, namespace.go
//   - links: links.go, device_links.go, targets.go, tc_filter.go, cgroup.go, edge_*.go, and the end: cleanup.go
//   - pinned tables: pinned.go, resize.go, repair.go
//   - tables of an earlier agent: predecessor.go, migrate*.go, layout9.go
//   - contents of tables: types.go, tables.go, hash_sync.go, withdraw.go, affinity.go, conntrack_*.go, prefilter*.go
//   - what programs count and report: *counters.go, losses.go, socket_stats.go, edge_events.go
//   - dry runs: dry_run.go, connect_explain.go
//
// The files *_bpfel.go are generated from bpf/ (generate.go).
package bpf
