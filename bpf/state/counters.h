/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Counters and events of the edge. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "state/types.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct edge_counters);
} edge_counts SEC(".maps");

/* 1 while a process reads `edge_events`. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} edge_watched SEC(".maps");

/* struct edge_event; events that do not fit are lost and counted. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} edge_events SEC(".maps");

/* Key: ID in `services`. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct service_counters);
} service_counts SEC(".maps");

/* Packets without a conntrack entry, for the range of service IDs that most Services have; added to
 * `service_counts`. An array, because it is updated for each such packet. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct service_packets);
} service_untracked SEC(".maps");

/* Traffic of flows that the agent has deleted, by service ID; added to `service_counts`. Written
 * only by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct service_traffic);
} service_collected SEC(".maps");

/* Clients' packets that did not reach their backend. A flood to many backends evicts counters of
 * those that have lost nothing for longest. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct loss_key);
	__type(value, struct loss);
} backend_losses SEC(".maps");

/* Packets of clients outside that a frontend dropped: traffic policy Local, and no local endpoint.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct frontend_key);
	__type(value, __u64);
} policy_drops SEC(".maps");

/* The result of a dry run. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct explanation);
} explanations SEC(".maps");

static __always_inline struct explanation *explanation_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&explanations, &zero);
}

static const struct service_counters no_counts;

/* Returns the counters of a service; creates them if needed. Needs no atomic operations: tc and XDP
 * programs run with bottom halves disabled, so no other packet is handled on this CPU meanwhile. */
static __always_inline struct service_counters *service_counters_get(__u32 service)
{
	struct service_counters *counters = bpf_map_lookup_elem(&service_counts, &service);

	if (counters || !service)
		return counters;
	bpf_map_update_elem(&service_counts, &service, &no_counts, BPF_NOEXIST);
	return bpf_map_lookup_elem(&service_counts, &service);
}

/* Counts a client's packet that has no conntrack entry. */
static __always_inline void count_untracked(__u32 service, __u32 bytes)
{
	struct service_packets *sent = bpf_map_lookup_elem(&service_untracked, &service);
	struct service_counters *counters;

	if (sent) {
		sent->packets++;
		sent->bytes += bytes;
		return;
	}
	counters = service_counters_get(service);
	if (!counters)
		return;
	counters->sent_packets++;
	counters->sent_bytes += bytes;
}

static __always_inline struct edge_counters *edge_counters_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&edge_counts, &zero);
}
