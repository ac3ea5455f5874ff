/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the programs know of the node's routes and routing rules. Without an agent the last state
 * holds. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lb/types.h"
#include "packet/packet.h"
#include "route/types.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct routing);
} routings SEC(".maps");

/* The MTUs of routes that are below those of their devices; 0 for a network inside of such a
 * route's that has none. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct route_key);
	__type(value, __u32);
} route_mtus SEC(".maps");

/* Routes with an outer header (`encap ip`). */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct network_key);
	__type(value, struct route_encap);
} route_encaps SEC(".maps");

static __always_inline const volatile struct routing *routing_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&routings, &zero);
}

/* Returns by what the kernel routes a packet beside its destination (enum routing_flag). */
static __always_inline __u32 routing_flags(struct context *ctx)
{
	const volatile struct routing *routing = routing_get();
	__u32 flags = routing ? routing->flags : 0;

	return flags & ROUTED_BY_MARK && !packet_mark(ctx) ? flags & ~ROUTED_BY_MARK : flags;
}
