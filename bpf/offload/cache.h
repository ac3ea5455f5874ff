/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Lookups in the flow cache. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "offload/maps.h"
#include "offload/types.h"
#include "packet/tuple.h"
#include "set_table/set_table.h"
#include "state/scratch.h"

/* Number of sets; set by the loader. */
const volatile __u32 offload_sets = 1;

/* The multiplier of the words of a key that follow the tuple. The agent computes the same
 * (OffloadKey.Sum). */
#define OFFLOAD_KEY_MIX 0xd6e8feb86659fd93ull

/* Returns the sum of a key: its upper half selects the set, its lower half is the hash. The secret
 * keeps clients from choosing tuples of one set. */
static __always_inline __u64 offload_sum(const struct tuple *t, __u32 device, __u32 tunnel)
{
	__u64 sum = set_sum(t, sizeof(*t) / sizeof(__u32));

	sum ^= ((__u64)tunnel << 32 | device) * OFFLOAD_KEY_MIX;
	return sum ^ sum >> 29;
}

/* Returns the entry of a packet, whose key has a sum; 0 if there is none. */
static __always_inline struct offload_flow *offload_find(const struct tuple *t, __u32 device,
							 __u32 tunnel, __u64 sum)
{
	__u32 number = set_first(sum, offload_sets), tag = set_tag(sum), place;
	const struct set_tags *tags = bpf_map_lookup_elem(&offload_tags, &number);
	struct offload_set *set;
	struct offload_flow *flow;

	if (!tags)
		return 0;
	for (place = 0; place < SET_PLACES; place++)
		if (tag_at(tags, place) == tag)
			break;
	if (place == SET_PLACES)
		return 0;
	set = bpf_map_lookup_elem(&offload_flows, &number);
	if (!set)
		return 0;
	barrier_var(place);
	if (place >= SET_PLACES)
		return 0;
	flow = &set->flows[place];
	return tuple_same(&flow->key.tuple, t) && flow->key.device == device &&
			       flow->key.tunnel == tunnel
		       ? flow
		       : 0;
}

static __always_inline const struct offload_control *offload_control_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&offload_controls, &zero);
}

static __always_inline struct offload_counters *offload_counters_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&offload_packets, &zero);
}

static __always_inline void offload_count_packet(enum offload_path path)
{
	struct offload_counters *counters = offload_counters_get();

	if (counters && path < OFFLOAD_PATHS)
		counters->packets[path]++;
}
