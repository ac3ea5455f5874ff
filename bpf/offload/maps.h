/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The tables of the flow cache. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "offload/types.h"

/* The flows in sets of 15. The agent alone adds and deletes entries. It reuses a place after all
 * programs that may have found its entry have ended. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct offload_set);
} offload_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct set_tags);
} offload_tags SEC(".maps");

/* The devices with the programs, by index: enum offload_device. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} offload_devices SEC(".maps");

/* How packets have arrived that do not tell it at egress (offload/note.h): in the upper half the
 * device, in the lower half the key of a tunnel in external mode, plus 1. */
#define OFFLOAD_ARRIVALS 65535
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, OFFLOAD_ARRIVALS);
	__type(key, __u32);
	__type(value, __u64);
} offload_arrivals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct offload_control);
} offload_controls SEC(".maps");

/* By the sum of the key. Concurrent updates may lose counts. */
#define OFFLOAD_COUNTS 131072
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, OFFLOAD_COUNTS);
	__type(key, __u32);
	__type(value, struct offload_count);
} offload_counts SEC(".maps");

/* struct offload_candidate; those that do not fit are proposed again later. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} offload_candidates SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct offload_counters);
} offload_packets SEC(".maps");
