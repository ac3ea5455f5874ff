/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Counts the packets of flows on the stack, to find those that are worth an entry. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "gateway/maps.h"
#include "gateway/types.h"
#include "packet/tuple.h"
#include "state/scratch.h"

/* A flow that sends nothing for this long, in ticks, is counted anew: 2 s. */
#define GATEWAY_COUNT_EXPIRY 2000

/* A flow that was not taken is proposed again after as many packets as it had, at most this many.
 */
#define GATEWAY_NEXT_MOST    4096

/* Counts a packet of the stack. Returns whether its flow is to be looked at. Of several flows with
 * one place the one with most packets keeps it. */
static __always_inline int gateway_is_due(struct scratch *w, __u32 threshold)
{
	__u32 hash = tuple_hash(&w->packet.tuple), slot = hash % GATEWAY_COUNTS, now = tick_of(w);
	struct gateway_count *c = bpf_map_lookup_elem(&gateway_counts, &slot);

	if (!c)
		return 0;
	if (c->hash != hash && c->count && now - c->tick < GATEWAY_COUNT_EXPIRY) {
		c->count--;
		return 0;
	}
	if (c->hash != hash || now - c->tick >= GATEWAY_COUNT_EXPIRY) {
		c->hash = hash;
		c->count = 0;
		c->next = threshold;
	}
	c->tick = now;
	if (c->count++ < c->next)
		return 0;
	c->next = c->count + (c->count < GATEWAY_NEXT_MOST ? c->count : GATEWAY_NEXT_MOST);
	return 1;
}

/* Counts a flow from the beginning: it returns to the stack. `t` is the tuple that leaves the node.
 */
static __always_inline void gateway_count_again(const struct tuple *t)
{
	__u32 hash = tuple_hash(t), slot = hash % GATEWAY_COUNTS;
	struct gateway_count *c = bpf_map_lookup_elem(&gateway_counts, &slot);

	if (c && c->hash == hash)
		c->hash = 0;
}
