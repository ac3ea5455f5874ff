/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Counts the packets of flows on the stack, to find those that are worth an entry. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "gateway/cache.h"
#include "gateway/maps.h"
#include "gateway/types.h"
#include "packet/tuple.h"
#include "state/scratch.h"

/* A flow that sends nothing for this long, in ticks, is counted anew: 2 s. */
#define GATEWAY_COUNT_EXPIRY 2000

/* A flow that was proposed is proposed again after as many packets as it had, at most this many. */
#define GATEWAY_NEXT_MOST    4096

/* Returns the place of a flow on the stack, by the tuple that leaves the node. The secret keeps
 * clients from choosing tuples of one place. */
static __always_inline struct gateway_count *gateway_count_place(const struct tuple *t, __u32 *hash)
{
	__u32 slot;

	*hash = gateway_sum(t, 0, 0) >> 32;
	slot = *hash % GATEWAY_COUNTS;
	return bpf_map_lookup_elem(&gateway_counts, &slot);
}

/* Counts a packet of another flow than the one that has the place. The one with most packets keeps
 * it, and of equal ones one wins. A flow that stays on the stack for good loses its lead soon. */
static __always_inline void gateway_count_other(struct gateway_count *c, __u32 threshold)
{
	if (bpf_get_prandom_u32() & 1)
		return;
	c->count -= c->count > 2 * threshold ? c->count >> 3 : 1;
}

/* Counts a packet of the stack. Returns the flow's place if the flow is to be looked at, else 0. */
static __always_inline struct gateway_count *gateway_is_due(struct scratch *w, __u32 threshold)
{
	__u32 hash, now = tick_of(w);
	struct gateway_count *c = gateway_count_place(&w->packet.tuple, &hash);

	if (!c)
		return 0;
	if (c->hash != hash && c->count && now - c->tick < GATEWAY_COUNT_EXPIRY) {
		gateway_count_other(c, threshold);
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
	return c;
}

/* Counts a flow from the beginning: it returns to the stack. `t` is the tuple that leaves the node.
 */
static __always_inline void gateway_count_again(const struct tuple *t)
{
	__u32 hash;
	struct gateway_count *c = gateway_count_place(t, &hash);

	if (c && c->hash == hash) {
		c->hash = 0;
		c->count = 0;
	}
}
