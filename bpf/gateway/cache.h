/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Lookups in the flow cache. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "gateway/maps.h"
#include "gateway/types.h"
#include "packet/tuple.h"
#include "set_table/set_table.h"
#include "state/scratch.h"

/* Number of sets; set by the loader. */
const volatile __u32 gateway_sets = 1;

/* The multiplier of the words of a key that follow the tuple. The agent computes the same
 * (GatewayKey.Sum). */
#define GATEWAY_KEY_MIX 0xd6e8feb86659fd93ull

/* Returns the sum of a key: its upper half selects the set, its lower half is the hash. The secret
 * keeps clients from choosing tuples of one set. */
static __always_inline __u64 gateway_sum(const struct tuple *t, __u32 device, __u32 tunnel)
{
	__u64 sum = set_sum(t, sizeof(*t) / sizeof(__u32));

	sum ^= ((__u64)tunnel << 32 | device) * GATEWAY_KEY_MIX;
	return sum ^ sum >> 29;
}

/* Returns the entry of a packet, whose key has a sum; 0 if there is none. */
static __always_inline struct gateway_flow *gateway_find(const struct tuple *t, __u32 device,
							 __u32 tunnel, __u64 sum)
{
	__u32 number = set_first(sum, gateway_sets), tag = set_tag(sum), place;
	const struct set_tags *tags = bpf_map_lookup_elem(&gateway_tags, &number);
	struct gateway_set *set;
	struct gateway_flow *flow;

	if (!tags)
		return 0;
	for (place = 0; place < SET_PLACES; place++)
		if (tag_at(tags, place) == tag)
			break;
	if (place == SET_PLACES)
		return 0;
	set = bpf_map_lookup_elem(&gateway_flows, &number);
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

static __always_inline const struct gateway_control *gateway_control_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&gateway_controls, &zero);
}

static __always_inline struct gateway_counters *gateway_counters_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&gateway_packets, &zero);
}

static __always_inline void gateway_count_packet(enum gateway_path path)
{
	struct gateway_counters *counters = gateway_counters_get();

	if (counters && path < GATEWAY_PATHS)
		counters->packets[path]++;
}
