/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The tables that the edge and the sockets share, and their lookups.
 *
 * The agent is the only writer of all tables except the counters and `affinity`
 * (lb/affinity.h). What a reader can reach never changes:
 *
 *   frontends: key -> row number   switched last, by one hash update
 *   frontend_rows                  written while the index does not refer to the row
 *   frontend_list_rows             likewise: rows with the same numbers
 *   slots                          written while no row refers to the range
 *   backends                       written while no slot refers to the ID
 *
 * A row, range or ID is reused only after every program that may have read it has ended. So a
 * reader never sees a partially written set, and an agent that is killed between two steps
 * leaves either the old state or the new one. The loader sets the sizes (bpf.Limits). */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lb/types.h"
#include "sock/types.h"

/* Set by the loader for explanations: programs report what they would do, and write nothing that
 * outlives the packet. Branches that depend on it are removed when the program is loaded. */
const volatile __u8 dry_run = 0;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct frontend_key);
	__type(value, __u32);
} frontends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct frontend);
} frontend_rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct frontend_lists);
} frontend_list_rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct backend);
} backends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct service_name);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct source_range_key);
	__type(value, __u32);
} source_ranges SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct network_key);
	__type(value, enum network);
} networks SEC(".maps");

/* Lets most packets skip the lookup of an untracked frontend. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct untracked_filter);
} untracked_frontends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct socket_counters);
} socket_counts SEC(".maps");

/* Increments a field of struct socket_counters. Atomic, because the hook of another task can
 * preempt a hook on the same CPU. */
#define COUNT(field)                                                                      \
	do {                                                                              \
		__u32 zero_ = 0;                                                          \
		struct socket_counters *c_ = bpf_map_lookup_elem(&socket_counts, &zero_); \
		if (c_)                                                                   \
			__sync_fetch_and_add(&c_->field, 1);                              \
	} while (0)

/* Returns whether an address is in a ServiceCIDR (R21). */
static __always_inline int in_service_network(const struct address *address)
{
	struct network_key key = {.prefixlen = 128, .address = *address};
	enum network *network = bpf_map_lookup_elem(&networks, &key);

	return network && *network == NETWORK_SERVICE;
}

/* Returns whether loadBalancerSourceRanges admit a source (R25). */
static __always_inline int source_admitted(__u32 source_set, const struct address *source)
{
	struct source_range_key key = {
		.prefixlen = 32 + 128,
		.source_set = source_set,
		.address = *source,
	};

	return bpf_map_lookup_elem(&source_ranges, &key) != 0;
}
