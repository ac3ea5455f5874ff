/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the edge keeps beside the tables that the agent writes. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "edge_types.h"

/* Flows that are assured (conntrack_table.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct conntrack_set);
} tracks SEC(".maps");

/* All others: a flood of them displaces no flow that is assured. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct conntrack_set);
} half_open SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct fragment_key);
	__type(value, struct fragment);
} fragments SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct edge_device);
} edge_devices SEC(".maps");

/* Whether a device's neighbours have MAC addresses. Those of a tunnel have others, which look
 * like some, and what goes out there needs the route that the kernel finds with it. */
static __always_inline int is_ethernet(__u32 device)
{
	struct edge_device *found = bpf_map_lookup_elem(&edge_devices, &device);
	__u32 high;
	__u16 low;

	if (!found)
		return 0;
	__builtin_memcpy(&high, found->mac, sizeof(high));
	__builtin_memcpy(&low, found->mac + sizeof(high), sizeof(low));
	return (high | low) != 0;
}

/* Networks of those whose encapsulated packets are for backends of this node, and addresses of
 * this node that lie in one of them. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct network_key);
	__type(value, enum balancer);
} balancers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct edge_counters);
} edge_counts SEC(".maps");

/* 1 while somebody reads `edge_events`. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} edge_watched SEC(".maps");

/* struct edge_event; what finds no room is not told. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} edge_events SEC(".maps");

/* By service id. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct service_counters);
} service_counts SEC(".maps");

/* What is added to `service_counts`, by service id, of those that most services have: it is written
 * for each packet without a record, and to find it here costs next to nothing. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct service_packets);
} service_sent SEC(".maps");

/* What is added to `service_counts`, by service id. Written by the agent alone. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct service_traffic);
} service_gone SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct door);
} doors SEC(".maps");

/* Of a dry run. */
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

/* Nobody else counts here meanwhile: programs of tc and XDP are not preempted by
 * another packet on the same CPU, since bottom halves are off. */
static __always_inline struct service_counters *counters_of(__u32 service)
{
	struct service_counters *counters = bpf_map_lookup_elem(&service_counts, &service);

	if (counters || !service)
		return counters;
	bpf_map_update_elem(&service_counts, &service, &no_counts, BPF_NOEXIST);
	return bpf_map_lookup_elem(&service_counts, &service);
}

/* Counts a packet of a client of which there is no record. */
static __always_inline void count_sent(__u32 service, __u32 bytes)
{
	struct service_packets *sent = bpf_map_lookup_elem(&service_sent, &service);
	struct service_counters *counters;

	if (sent) {
		sent->packets++;
		sent->bytes += bytes;
		return;
	}
	counters = counters_of(service);
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
