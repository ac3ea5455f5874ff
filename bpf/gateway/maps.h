/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The tables of the gateway's flow cache. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "gateway/types.h"

/* The flows in sets of 15. The agent alone adds and deletes entries. It reuses a place after all
 * programs that may have found its entry have ended. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gateway_set);
} gateway_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct set_tags);
} gateway_tags SEC(".maps");

/* The devices with the programs, by index: enum gateway_device. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} gateway_devices SEC(".maps");

/* How packets have arrived that do not tell it at egress (gateway/note.h): in the upper half the
 * device, in the lower half the key of a tunnel in external mode, plus 1. */
#define GATEWAY_ARRIVALS 65535
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GATEWAY_ARRIVALS);
	__type(key, __u32);
	__type(value, __u64);
} gateway_arrivals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gateway_control);
} gateway_controls SEC(".maps");

/* By the sum of the key. Concurrent updates may lose counts. */
#define GATEWAY_COUNTS 131072
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GATEWAY_COUNTS);
	__type(key, __u32);
	__type(value, struct gateway_count);
} gateway_counts SEC(".maps");

/* struct gateway_candidate; those that do not fit are proposed again later. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} gateway_candidates SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gateway_counters);
} gateway_packets SEC(".maps");
