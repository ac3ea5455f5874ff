/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The conntrack tables (conntrack/table.h). */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/types.h"
#include "set_table/types.h"

/* Assured flows (conntrack/table.h). The tags of all sets are contiguous: lookups for most packets
 * of new flows read nothing else. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct set_tags);
} conntrack_tags SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ct_set);
} conntrack SEC(".maps");

/* All other flows: a flood of them evicts no assured flow. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct set_tags);
} unreplied_tags SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ct_set);
} unreplied SEC(".maps");
